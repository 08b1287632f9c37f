"""The cancel token of a batch: tells a running model that takes one that all callers have left."""

import inspect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from headway.core.items import Batch
from headway.model import CANCEL, Cancel
from headway.runtime.driving.calls import Answerable


class BatchCancel(Cancel):
    """Looks at the callers whenever it is asked. A model in another process cannot ask: `check`
    informs its worker (`watch`) when the last caller leaves."""

    def __init__(
        self, batch: Batch, calls: Sequence[Answerable], clock: Callable[[], float]
    ) -> None:
        self.items = batch.items
        self.deadline = max(item.deadline for item in batch.items)
        self._calls = calls
        self._clock = clock
        self._tell: Callable[[], object] | None = None
        self._lock = threading.Lock()

    @property
    def left_s(self) -> float:
        """The seconds until the last deadline of the callers; infinite if one has none."""
        return self.deadline - self._clock()

    @property
    def is_set(self) -> bool:
        if self.deadline != math.inf and self._clock() >= self.deadline:
            return True
        return all(call.is_done for call in self._calls)

    def watch(self, tell: Callable[[], object]) -> None:
        with self._lock:
            self._tell = tell
        self.check()

    def check(self) -> None:
        with self._lock:
            if self._tell is not None and self.is_set:
                self._tell()


def takes_cancel(function: Callable[..., Any]) -> bool:
    try:
        return CANCEL in inspect.signature(function).parameters
    except ValueError:  # a builtin that does not say
        return False
