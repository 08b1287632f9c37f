"""Keeps the garbage collector's pauses short.

A full collection visits every object. With all imported modules that takes 20 ms and more, and no
request is read meanwhile. Objects that exist when the server is ready live as long as it, so they
are frozen: collections leave them out. When a model is unloaded, they are included again, until a
collection has freed what is left of it.
"""

import gc
import threading
import weakref
from typing import Any

from headway.hosting.registry import Registry, ServedModel
from headway.observe.history import History

# How many new objects start a collection. Hundreds of requests in flight have about as many, and a
# collection while they are in flight frees nothing. A collection of 5,000 takes less than 0.3 ms.
_YOUNG = 5_000
# Python 3.12 itself freezes some hundred objects; a program that freezes its imports, tens of
# thousands.
_IMMORTAL = 2_000


class GarbagePauses:
    def __init__(
        self, registry: Registry, history: History | None = None, *, is_guest: bool = False
    ) -> None:
        """`is_guest`: the process is another program's. Its thresholds are not changed, and if it
        freezes objects itself, nothing is. `history` keeps the pauses that are left."""
        self._registry = registry
        self._history = history
        self._began_at = 0.0
        self._is_guest = is_guest
        self._gone: list[weakref.ref[Any]] = []  # unloaded models, perhaps not freed yet
        self._is_frozen = False
        self._thresholds = gc.get_threshold()
        self._lock = threading.RLock()  # collections happen in any thread, in ours at any moment

    def start(self) -> None:
        """Start, once everything is loaded."""
        if self._is_guest and is_frozen():
            return
        gc.collect()
        self._freeze()
        gc.callbacks.append(self._collected)
        if not self._is_guest:
            gc.set_threshold(_YOUNG, *self._thresholds[1:])
        self._registry.on_gone(self._thaw)

    def stop(self) -> None:
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
            self._registry.off_gone(self._thaw)
            if not self._is_guest:
                gc.set_threshold(*self._thresholds)
            gc.unfreeze()

    def _freeze(self) -> None:
        gc.freeze()
        self._is_frozen = True

    def _thaw(self, gone: ServedModel) -> None:
        with self._lock:
            # A batch that outlives its model has only the batcher.
            self._gone += [weakref.ref(gone), weakref.ref(getattr(gone, "batcher", gone))]
            self._is_frozen = False
            gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """Freeze again after the first full collection that finds no unloaded model."""
        if self._history is not None:
            now = self._history.clock()
            if phase == "start":
                self._began_at = now
            else:
                self._history.paused(self._began_at, now)
        if phase != "stop" or info["generation"] != 2:
            return
        with self._lock:
            if not self._is_frozen and all(each() is None for each in self._gone):
                self._gone.clear()
                self._freeze()


def is_frozen() -> bool:
    """Are this process's imported objects left out of collections?"""
    return gc.get_freeze_count() > _IMMORTAL
