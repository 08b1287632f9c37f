"""Batchers in a forked process: their threads, loops and worker processes are the parent's.

Prefork servers load an application and fork. A decorated function starts over in the child at its
next call; a batcher that was opened refuses, and says what to do.
"""

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    def after_fork(self) -> None:
        """Called in the child, which has only this thread. Other threads' locks may stay locked."""


_alive: "weakref.WeakSet[Forked]" = weakref.WeakSet()
# The parent's objects are kept for ever here: when deleted, they would stop the parent's threads
# and processes.
left_behind: list[object] = []


def tell_when_forked(one: Forked) -> None:
    _alive.add(one)


def _after_fork() -> None:
    for one in list(_alive):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)
