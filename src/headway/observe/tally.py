"""How many requests a front end has answered with which error."""

from headway.observe import families
from headway.observe.exposition import Exposition, labels

_STAGES = (families.STAGE_CALLS, families.STAGES_FAILED, families.STAGE_SECONDS)


class ErrorTally:
    """Counts by the error's code, which is ours: nothing that a client sends becomes a label."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._counts: dict[str, int] = {}

    def count(self, code: str) -> None:
        self._counts[code] = self._counts.get(code, 0) + 1

    def add_to(self, page: Exposition) -> None:
        for code, count in self._counts.items():
            where = labels(families.ERROR_ANSWERS.labels, (self._protocol, code))
            page.add(families.ERROR_ANSWERS, where, count)


class StageTally:
    """Counts by calling and called model, both named by the server's configuration."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[int, int, float]] = {}  # as the families below

    def record(self, *, model: str, stage: str, seconds: float, failed: bool) -> None:
        calls, failures, spent_s = self._sums.get((model, stage), (0, 0, 0.0))
        self._sums[model, stage] = calls + 1, failures + failed, spent_s + seconds

    def add_to(self, page: Exposition) -> None:
        shown = {key: sums for key, sums in self._sums.items() if all(map(page.shows, key))}
        for place, family in enumerate(_STAGES):
            for key, sums in shown.items():
                page.add(family, labels(family.labels, key), sums[place])
