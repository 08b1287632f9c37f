"""Remembers which contents have crashed workers lately, by their digests.

They are forgotten after a while: the next version of a model may handle them.
"""

KEEP_S = 600.0
MOST = 1024  # the oldest are forgotten first


class PoisonMemory:
    """False while it is empty: then no digest needs to be computed."""

    def __init__(self, keep_s: float = KEEP_S, most: int = MOST) -> None:
        self._keep_s = keep_s
        self._most = most
        self._forget_at: dict[bytes, float] = {}  # by digest, in the order of these times

    def __bool__(self) -> bool:
        return bool(self._forget_at)

    def __len__(self) -> int:
        return len(self._forget_at)

    def remember(self, digest: bytes, now: float) -> None:
        self._forget_at.pop(digest, None)
        if len(self._forget_at) >= self._most:
            del self._forget_at[next(iter(self._forget_at))]
        self._forget_at[digest] = now + self._keep_s

    def is_known(self, digest: bytes, now: float) -> bool:
        while self._forget_at:
            oldest, forget_at = next(iter(self._forget_at.items()))
            if forget_at > now:
                return digest in self._forget_at
            del self._forget_at[oldest]
        return False
