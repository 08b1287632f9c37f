"""Keeps the garbage collector's pauses short.

A full collection looks at every object there is: with all that is imported, 20 ms and more, in
which no request is read. What was there when the server was ready stays for good, so collections
leave it out; until a model goes, whose remains must be found.
"""

import gc
import weakref
from typing import Any

from headway.server.serving import Registry, ServedModel


class Pauses:
    def __init__(self) -> None:
        self._gone: list[weakref.ref[ServedModel]] = []  # and perhaps not freed yet

    def watch(self, registry: Registry) -> None:
        """Once everything is loaded."""
        gc.collect()
        gc.freeze()
        registry.on_gone(self._thaw)

    def _thaw(self, gone: ServedModel) -> None:
        gc.unfreeze()
        self._gone.append(weakref.ref(gone))
        if self._collected not in gc.callbacks:
            gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """Freeze again after the first full collection that leaves nothing of those who went."""
        if phase != "stop" or info["generation"] != 2:
            return
        self._gone = [each for each in self._gone if each() is not None]
        if not self._gone:
            gc.callbacks.remove(self._collected)
            gc.freeze()
