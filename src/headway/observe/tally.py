"""How many requests a front end has answered with which error."""

from headway.observe import families
from headway.observe.exposition import Exposition, labels


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
        self._calls: dict[tuple[str, str], int] = {}
        self._failed: dict[tuple[str, str], int] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def record(self, *, model: str, stage: str, seconds: float, failed: bool) -> None:
        key = (model, stage)
        self._calls[key] = self._calls.get(key, 0) + 1
        self._failed[key] = self._failed.get(key, 0) + failed
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def add_to(self, page: Exposition) -> None:
        for family, values in (
            (families.STAGE_CALLS, self._calls),
            (families.STAGES_FAILED, self._failed),
            (families.STAGE_SECONDS, self._seconds),
        ):
            for key, value in values.items():
                if all(map(page.shows, key)):
                    page.add(family, labels(family.labels, key), value)
