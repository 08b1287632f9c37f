"""Results: for each request when it was due, when it was answered, and what was wrong."""

from array import array
from collections import Counter
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from headway.lab.workload import Times
from headway.loadgen.connection import LoadConnection
from headway.loadgen.room import ClientRoom, RoomMeter
from headway.loadgen.tokens import TokenLog, TokenSamples

UNANSWERED = "unanswered"  # when the run was over
CANCELLED = "left by --cancel"
_MANY_KINDS = 50


class Sent:
    """The requests of a run that have ended, as the driver sees them."""

    def __init__(self, room: RoomMeter, tokens: TokenLog | None = None) -> None:
        self.room = room
        self.tokens = tokens
        self.in_flight = 0
        self.due = array("d")
        self.done = array("d")
        self.late = array("d")
        self.kind = array("B")  # 0: answered; else the number of an error's name
        self.kinds: dict[str, int] = {"": 0}
        self.errors = 0

    def add(self, connection: LoadConnection, answer: bytes, mark: bytes, now: float) -> None:
        self.in_flight -= 1
        if answer[9:12] == b"200" and mark in answer:
            self.due.append(connection.due)
            self.done.append(now)
            self.late.append(connection.late)
            self.kind.append(0)
            if self.tokens is not None:
                self.tokens.add(connection.arrived or [], answer)
        else:
            self.fail(connection.due, error_of(answer), now, connection.late)

    def fail(self, due: float, kind: str, now: float, late: float = 0.0) -> None:
        if len(self.kinds) > _MANY_KINDS:
            kind = "others"
        self.due.append(due)
        self.done.append(now)
        self.late.append(late)
        self.kind.append(self.kinds.setdefault(kind, len(self.kinds)))
        self.errors += 1
        if self.tokens is not None:
            self.tokens.add_none()

    def samples(self, start: float, idle_s: float) -> "Samples":
        due = np.frombuffer(self.due) - start
        order = np.argsort(due, kind="stable")
        return Samples(
            due_s=due[order],
            done_s=(np.frombuffer(self.done) - start)[order],
            late_s=np.frombuffer(self.late)[order],
            kind=np.frombuffer(self.kind, np.uint8)[order],
            kinds=tuple(self.kinds),
            room=self.room.told(idle_s),
            tokens=None if self.tokens is None else self.tokens.samples(start, order),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """By request, in the order in which they were due; seconds from the start of the run."""

    due_s: Times
    done_s: Times  # infinite: unanswered
    late_s: Times  # it left so long after it was due and a connection was free
    kind: NDArray[np.uint8]
    kinds: tuple[str, ...]
    room: ClientRoom
    tokens: TokenSamples | None = None  # None: the answers were no streams

    def due_between(self, begin_s: float, end_s: float) -> "Samples":
        """Only the requests that were due then."""
        return self._only((self.due_s >= begin_s) & (self.due_s < end_s))

    def done_between(self, begin_s: float, end_s: float) -> "Samples":
        return self._only((self.done_s >= begin_s) & (self.done_s < end_s))

    def _only(self, chosen: NDArray[np.bool_]) -> "Samples":
        return replace(
            self,
            due_s=self.due_s[chosen],
            done_s=self.done_s[chosen],
            late_s=self.late_s[chosen],
            kind=self.kind[chosen],
            tokens=None if self.tokens is None else self.tokens.only(chosen),
        )

    @property
    def is_ok(self) -> NDArray[np.bool_]:
        answered: NDArray[np.bool_] = self.kind == 0
        return answered

    @property
    def latencies_s(self) -> Times:
        """Of requests that were answered, or that would be some day: those are infinite."""
        counted = self.is_ok | np.isinf(self.done_s)
        return self.done_s[counted] - self.due_s[counted]

    @property
    def errors(self) -> dict[str, int]:
        """How many there were of each kind, the commonest first."""
        found = Counter(self.kinds[each] for each in self.kind.tolist() if each)
        return dict(found.most_common())


def error_of(answer: bytes) -> str:
    """The kind of an error: its status, and its code if it says one."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/"):
        return "no HTTP"
    status = head[9:12].decode("latin-1")
    if status == "200":
        return "another request's answer"
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return status
    error = told.get("error", told) if isinstance(told, dict) else None
    code = error.get("code") or error.get("type") if isinstance(error, dict) else error
    text = str(code).split("\n")[0] if code is not None else ""
    return f"{status} {text[:60]}".strip() if not text.isdecimal() else status


def in_flight_at(samples: Samples, moments: Times) -> Times:
    """How many requests were due and not answered at each of these moments."""
    began = np.searchsorted(samples.due_s, moments, side="right")
    ended = np.searchsorted(np.sort(samples.done_s), moments, side="right")
    return (began - ended).astype(np.float64)
