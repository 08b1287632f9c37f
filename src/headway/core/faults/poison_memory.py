"""Which contents have taken workers down lately. Digests only: the contents are others' business.

Remembered for a while, not for ever: the next version of a model may well take them.
"""

KEEP_S = 600.0
MOST = 1024  # the longest known are forgotten first


class PoisonMemory:
    """False while it knows of none: then no digest needs to be computed.

    A *sketch* is a digest of samples of the content: cheap, and enough to clear almost every item.
    """

    def __init__(self, keep_s: float = KEEP_S, most: int = MOST) -> None:
        self._keep_s = keep_s
        self._most = most
        self._known: dict[bytes, tuple[bytes, float]] = {}  # by digest: sketch, forgotten at
        self._sketches: dict[bytes, int] = {}  # how many digests have it

    def __bool__(self) -> bool:
        return bool(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, sketch: bytes, digest: bytes, now: float) -> None:
        self._forget(digest)
        if len(self._known) >= self._most:
            self._forget(next(iter(self._known)))
        self._known[digest] = (sketch, now + self._keep_s)
        self._sketches[sketch] = self._sketches.get(sketch, 0) + 1

    def is_suspicious(self, sketch: bytes, now: float) -> bool:
        """Is the digest worth computing?"""
        self._forget_old(now)
        return sketch in self._sketches

    def is_known(self, digest: bytes, now: float) -> bool:
        self._forget_old(now)
        return digest in self._known

    def _forget_old(self, now: float) -> None:
        while self._known:  # in the order in which they are forgotten
            digest, (_, until) = next(iter(self._known.items()))
            if until > now:
                return
            self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        known = self._known.pop(digest, None)
        if known is None:
            return
        sketch, _ = known
        self._sketches[sketch] -= 1
        if not self._sketches[sketch]:
            del self._sketches[sketch]
