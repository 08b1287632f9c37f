"""Recognises inputs that have killed workers, among new and waiting calls."""

import hashlib
import pickle
import threading
from collections.abc import Hashable
from typing import Any

from headway.core.faults.poison_memory import PoisonMemory


class PoisonWatch:
    """Used from any thread. False while no such input is known: then calls need no check."""

    def __init__(self) -> None:
        self._memory = PoisonMemory()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._memory)

    def remember(self, value: Any, partition: Hashable, now: float) -> None:
        digest = digest_of(value, partition)
        if digest is not None:
            with self._lock:
                self._memory.remember(digest, now)

    def is_known(self, value: Any, partition: Hashable, now: float) -> bool:
        digest = digest_of(value, partition)
        with self._lock:
            return self._memory.is_known(digest or b"", now)


def digest_of(value: Any, partition: Hashable) -> bytes | None:
    """The same for equal contents; not for secrets. None: they cannot be recognised."""
    try:
        content = pickle.dumps((value, partition), protocol=5)
    except BaseException:  # noqa: BLE001  user code: what pickle asks of a value
        return None
    return hashlib.blake2b(content, digest_size=16).digest()
