"""Every request's one outcome, and what is wrong with the whole of them.

Pure bookkeeping: who sends and reads is elsewhere, and so is the clock. It must be able to fail:
`tests/integration/chaos/` shows it a lost, a double and a crossed answer.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.chaos.scenario import Request

ANSWERED = "answered"
LEFT = "left"  # the client went, as planned
BROKEN_OFF = "broken_off"  # a stream with a chunk already, by a failure of its batch
OVERLOAD = frozenset(["queue_full", "shed"])

# What each behaviour may end with, beside a refusal by overload.
_EXPECTED: dict[str, frozenset[str]] = {
    "fine": frozenset([ANSWERED]),
    "big": frozenset([ANSWERED]),
    "raise": frozenset(["model_failed"]),
    # Both say why. Poison: it took what memory a new process had, too.
    "huge": frozenset(["model_failed", "poison"]),
    "leak": frozenset([ANSWERED]),  # where a full worker has no room for it, a new one has
    "exit": frozenset(["poison"]),
    "segfault": frozenset(["poison"]),
    "hang": frozenset(["poison"]),
    "freeze": frozenset(["poison"]),
}
_NUMBER = re.compile(r"\d+(\.\d+)?")


class Entry(NamedTuple):
    """What became of one request."""

    request: Request
    outcome: str
    at: float
    detail: str = ""

    @property
    def latency_s(self) -> float:
        return self.at - self.request.due_at


@dataclass(frozen=True, slots=True)
class Broken:
    """One invariant that does not hold, and the first case of it."""

    what: str
    count: int
    example: str


class Ledger:
    """`sent` once for each request, then exactly one of the others."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}
        self._owners: dict[str, int] = {}  # by digest: whose input it is
        self.entries: dict[int, Entry] = {}
        self.doubles: list[str] = []
        self.crossed: list[str] = []
        self.strays: list[str] = []
        self.sent_late_s: list[float] = []  # the load generator's own fault

    @property
    def sent_count(self) -> int:
        return len(self._open) + len(self.entries)

    def sent(self, request: Request, now: float) -> None:
        self.sent_late_s.append(now - request.due_at)
        assert request.id not in self._open, "sent twice: a mistake of the load generator"
        self._open[request.id] = request
        self._owners.update((digest, request.id) for digest in request.digests)

    def answered(self, request: Request, digests: Sequence[str], now: float) -> None:
        """With 200, and these digests in it."""
        if tuple(digests) == request.digests:
            self._settle(request, ANSWERED, now)
            return
        owners = sorted({self._owners.get(digest, -1) for digest in digests})
        whose = f"request {request.id} got an answer with the digests of {owners}"
        self.crossed.append(whose)
        self._settle(request, "crossed", now, whose)

    def failed(self, request: Request, kind: str, detail: str, now: float) -> None:
        """Refused, or told of an error, by its kind."""
        self._settle(request, kind, now, detail)

    def left(self, request: Request, now: float) -> None:
        """The client hung up, as planned."""
        self._settle(request, LEFT, now)

    def stray(self, data: bytes) -> None:
        """Something came on a connection on which nobody waited."""
        self.strays.append(repr(data[:100]))

    def _settle(self, request: Request, outcome: str, now: float, detail: str = "") -> None:
        if self._open.pop(request.id, None) is None:
            self.doubles.append(f"request {request.id}: {outcome} after it had its outcome")
            return
        self.entries[request.id] = Entry(request, outcome, now, detail)

    # ---- the verdict

    def counts(self) -> Counter[str]:
        return Counter(entry.outcome for entry in self.entries.values())

    def broken(self) -> list[Broken]:
        """Once everything has been waited for: what does not hold. Nothing: all is well."""
        found = {
            "requests without an outcome": [
                f"request {request.id} to {request.model} ({request.behaviour}, "
                f"{request.transport}, due at {request.due_at:.3f})"
                for request in self._open.values()
            ],
            "requests with two outcomes": self.doubles,
            "answers to the wrong caller": self.crossed,
            "answers that nobody waited for": self.strays,
            "healthy requests that failed": [
                _shown(entry)
                for entry in self.entries.values()
                if entry.request.is_healthy and not _may_end_so(entry)
            ],
            "misbehaving requests that ended otherwise than they should": [
                _shown(entry)
                for entry in self.entries.values()
                if not entry.request.is_healthy and not _may_end_so(entry)
            ],
        }
        return [Broken(what, len(each), each[0]) for what, each in found.items() if each]

    def unexpected(self) -> Counter[tuple[str, str, str, str]]:
        """What ended otherwise than it should: model, behaviour, outcome, the server's words."""
        ended = [
            (entry.request, entry.outcome, _NUMBER.sub("…", entry.detail)[:120])
            for entry in self.entries.values()
            if not _may_end_so(entry)
        ]
        ended += [(request, "nothing", "") for request in self._open.values()]
        return Counter(
            (request.model, request.behaviour, outcome, words) for request, outcome, words in ended
        )


def _may_end_so(entry: Entry) -> bool:
    request, outcome = entry.request, entry.outcome
    if outcome in OVERLOAD or outcome in _EXPECTED[request.behaviour]:
        return True
    if request.model == "stories" and outcome == BROKEN_OFF:
        return True
    is_leaving = request.leaves_after_s is not None or request.leaves_after_chunks is not None
    return outcome == LEFT and is_leaving


def _shown(entry: Entry) -> str:
    request = entry.request
    return (
        f"request {request.id} to {request.model} ({request.behaviour}, {request.transport}, due "
        f"at {request.due_at:.3f}) ended as {entry.outcome} at {entry.at:.3f}: {entry.detail[:200]}"
    )
