"""What batches of one size take: probed, then refined by what is observed."""

TRUSTED_SAMPLES = 3  # a cell seen fewer times than this is a rumour (first calls are slow)
_REFINE_RATE = 0.01  # of an observation goes into its cell, once many were seen
_MOST_CHANGE = 0.02  # of what was probed, by one observation


class Cell:
    """Batches of one size."""

    __slots__ = ("last_s", "samples", "seconds", "seen_at", "was_probed")

    def __init__(
        self, seconds: float, samples: int, seen_at: int, *, was_probed: bool = False
    ) -> None:
        self.was_probed = was_probed
        self.seconds = seconds
        self.samples = samples
        self.seen_at = seen_at  # by the number of batches observed
        self.last_s = 0.0  # what the last batch took; 0: none was seen

    def refine(self, seconds: float) -> None:
        self.samples += 1
        if self.samples <= 2:  # a first call pays for what is loaded lazily; the faster one is true
            self.seconds = min(self.seconds, seconds)
            return
        change_s = (seconds - self.seconds) * max(1 / self.samples, _REFINE_RATE)
        if self.was_probed:
            most_s = _MOST_CHANGE * self.seconds
            change_s = min(max(change_s, -most_s), most_s)
        self.seconds += change_s

    def try_again(self, seconds: float) -> None:
        """Too slow may be an accident. Too fast is not, and what a trial looks for."""
        self.seconds = min(seconds, (self.seconds + seconds) / 2)

    @property
    def is_trusted(self) -> bool:
        return self.samples >= TRUSTED_SAMPLES
