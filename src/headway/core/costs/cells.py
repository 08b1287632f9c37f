"""The time of batches of one size: probed, then refined by observations."""

TRUSTED_SAMPLES = 3  # with fewer samples, a cell is not used (first calls are slow)
_REFINE_RATE = 0.01  # the least weight of the newest observation in its cell


class Cell:
    """Batches of one size."""

    __slots__ = ("samples", "seconds", "seen_at")

    def __init__(self, seconds: float, samples: int, seen_at: int) -> None:
        self.seconds = seconds
        self.samples = samples
        self.seen_at = seen_at  # as a number of observed batches

    def refine(self, seconds: float) -> None:
        self.samples += 1
        if self.samples <= 2:  # a first call includes lazy loading
            self.seconds = min(self.seconds, seconds)
            return
        self.seconds += (seconds - self.seconds) * max(1 / self.samples, _REFINE_RATE)

    def try_again(self, seconds: float) -> None:
        """Enter the time of a trial. A slow time may be chance; a fast one is never chance."""
        self.seconds = min(seconds, (self.seconds + seconds) / 2)

    @property
    def is_trusted(self) -> bool:
        return self.samples >= TRUSTED_SAMPLES
