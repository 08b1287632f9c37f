"""What runs now, and on which workers: the scheduler writes it, everybody else reads it."""

from collections.abc import Sequence

from headway.core.items import Batch


class Running:
    """Workers are known by number; they may come and go."""

    def __init__(self, workers: int) -> None:
        self.batches: dict[int, Batch] = {}
        self.items = 0
        self.numbers: tuple[int, ...] = tuple(range(workers))  # of the workers that are there
        self.workers = workers  # how many to reckon with; at least 1: one will be back
        # By worker: how many times as long a batch takes.
        self.speeds: tuple[float, ...] = (1.0,) * workers

    def set_workers(self, numbers: Sequence[int]) -> None:
        """These are there now; how fast they are is not known."""
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
        """Workers that run nothing."""
        return len(self.numbers) - len(self.batches)
