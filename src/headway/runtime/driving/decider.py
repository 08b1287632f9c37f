"""What a shell drives: the part that knows what is batched, be it requests or tokens.

A decider decides with the help of a pure scheduler, and acts on it. It knows its shell; the shell
knows it by this protocol only.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

from headway.runtime.driving.calls import Answerable
from headway.runtime.driving.event_loop import EventLoop

Arrival = TypeVar("Arrival")  # what is put into the shell's inbox
Decision = TypeVar("Decision")


class Decider(Protocol[Arrival, Decision]):
    """The shell calls all of this under its lock, where no user code may run, unless it says
    otherwise. What it raises ends the shell as a crash."""

    @property
    def is_idle(self) -> bool:
        """Nothing is queued, and nothing runs."""
        ...

    def start(self, event_loop: EventLoop) -> None:
        """Make what runs the work. Raises NotReady where that cannot be had; harmless then."""
        ...

    def accept(self, inbox: deque[Arrival]) -> None:
        """Queue whatever is in the inbox; others append meanwhile. Note each caller before
        anything can fail: in a crash it must be among `unanswered`."""
        ...

    def decide(self, now: float) -> tuple[Decision, float]:
        """What to do now, and when to ask again; infinite: when something happens."""
        ...

    def act(self, decision: Decision) -> None:
        """Without the lock, in the thread in which it was decided."""
        ...

    def caller_of(self, arrival: Arrival) -> Answerable: ...

    def unanswered(self) -> Sequence[Answerable]:
        """All unanswered calls, queued or running."""
        ...

    def forget(self) -> None:
        """The end: the shell answers all callers. Results of running batches are dropped."""
        ...

    def drain(self) -> None:
        """No more calls will come: waiting for more items is useless."""

    def stop(self) -> None:
        """Release what `start` made. Without the lock."""

    def doors_changed(self) -> None:
        """The shell takes calls from now on, or takes none (`takes_calls`)."""

    # Only of a shell that may move from loop to loop:

    def drop_lost(self) -> None:
        """Answer calls that run in an event loop that was closed: they never come back."""

    def move(self, event_loop: EventLoop) -> None:
        """From virtual time to the real one, or back: other workers may be needed."""
