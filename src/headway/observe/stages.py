"""Calls from one model to another: how many, how long, how many failed."""

from headway.observe import families
from headway.observe.exposition import Exposition, labels


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
