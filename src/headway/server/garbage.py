"""Keeps the garbage collector's pauses short.

A full collection visits every object: with all imported modules, 20 ms and more, in
which no request is read. What was there when the server was ready stays for good, so collections
leave it out, until a model is unloaded: its remains must be found.
"""

import gc
import threading
import weakref
from typing import Any

from headway.hosting.registry import Registry, ServedModel
from headway.observe.history import History

# New objects before a collection looks at them: hundreds of requests in flight have as many, and
# each collection that comes while they are looks at them in vain. A pause stays below 0.3 ms.
_YOUNG = 5_000
# Objects that no collection looks at because they never die: Python 3.12 has some hundred. Who
# freezes what was imported freezes tens of thousands.
_IMMORTAL = 2_000


class GarbagePauses:
    def __init__(
        self, registry: Registry, history: History | None = None, *, is_guest: bool = False
    ) -> None:
        """`is_guest`: the process is another program's. Its thresholds stay as they are, and where
        it freezes objects itself, it is left alone. `history`: keeps what pauses remain."""
        self._registry = registry
        self._history = history
        self._began_at = 0.0
        self._is_guest = is_guest
        self._gone: list[weakref.ref[Any]] = []  # and perhaps not freed yet
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
    """Whether this process excludes its imported objects from collections."""
    return gc.get_freeze_count() > _IMMORTAL
