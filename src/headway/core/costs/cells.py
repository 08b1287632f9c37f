"""The time of batches of one size: probed, then refined by observations."""

TRUSTED_SAMPLES = 3  # with fewer samples, a cell is not used (first calls are slow)
_REFINE_RATE = 0.01  # the least weight of the newest observation in its cell
_MOST_CHANGE = 0.02  # one observation changes a probed cell by at most this part


class Cell:
    """Batches of one size."""

    __slots__ = ("last_s", "samples", "seconds", "seen_at", "was_probed")

    def __init__(
        self, seconds: float, samples: int, seen_at: int, *, was_probed: bool = False
    ) -> None:
        self.was_probed = was_probed
        self.seconds = seconds
        self.samples = samples
        self.seen_at = seen_at  # as a number of observed batches
        self.last_s = 0.0  # the time of the last batch; 0: none was observed

    def refine(self, seconds: float) -> None:
        self.samples += 1
        if self.samples <= 2:  # a first call includes lazy loading
            self.seconds = min(self.seconds, seconds)
            return
        change_s = (seconds - self.seconds) * max(1 / self.samples, _REFINE_RATE)
        if self.was_probed:
            most_s = _MOST_CHANGE * self.seconds
            change_s = min(max(change_s, -most_s), most_s)
        self.seconds += change_s

    def try_again(self, seconds: float) -> None:
        """Enter the time of a trial. A slow time may be chance; a fast one is never chance."""
        self.seconds = min(seconds, (self.seconds + seconds) / 2)

    @property
    def is_trusted(self) -> bool:
        return self.samples >= TRUSTED_SAMPLES
