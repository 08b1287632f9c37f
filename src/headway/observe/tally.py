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
