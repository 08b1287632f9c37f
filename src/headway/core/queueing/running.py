"""The running batches, and the workers. The scheduler writes this, other modules read it."""

from collections.abc import Sequence

from headway.core.items import Batch


class Running:
    """Workers are known by number; they may come and go."""

    def __init__(self, workers: int) -> None:
        self.batches: dict[int, Batch] = {}
        self.items = 0
        self.numbers: tuple[int, ...] = tuple(range(workers))  # the workers that are up
        self.workers = workers  # the number to plan with; at least 1, because a lost one restarts
        # By worker: how many times as long as usual a batch takes.
        self.speeds: tuple[float, ...] = (1.0,) * workers

    def set_workers(self, numbers: Sequence[int]) -> None:
        """These workers are up now; their speeds are unknown."""
        self.numbers = tuple(numbers)
        self.workers = max(1, len(self.numbers))
        self.speeds = (1.0,) * self.workers

    def start(self, batch: Batch) -> None:
        self.batches[batch.id] = batch
        self.items += len(batch.items)

    def leave(self, batch: Batch) -> None:
        assert batch.id in self.batches, f"batch {batch.id} is not running"
        del self.batches[batch.id]
        self.items -= len(batch.items)

    @property
    def free(self) -> int:
        """The number of workers without a batch."""
        return len(self.numbers) - len(self.batches)
