"""The workers of one batcher: which are free, and which are away. Used under the shell's lock."""

from collections.abc import Iterable

from headway.runtime.jobs.jobs import Worker


class WorkerPool:
    def __init__(self) -> None:
        self.workers: list[Worker] = []
        # Changed in place, never replaced: the decider keeps references to both.
        self.free: list[Worker] = []
        self.away: set[Worker] = set()  # they cannot take a batch now

    @property
    def present(self) -> int:
        return len(self.workers) - len(self.away)

    @property
    def numbers_present(self) -> list[int]:
        return [number for number, each in enumerate(self.workers) if each not in self.away]

    def take(self, number: int) -> Worker:
        """The worker of this number if it is free, else any free one."""
        if len(self.free) > 1 and number < len(self.workers):
            worker = self.workers[number]
            if worker in self.free:
                self.free.remove(worker)
                return worker
        return self.free.pop()

    def fill(self, workers: Iterable[Worker]) -> list[Worker]:
        """Replace all workers by these, which are free. Returns the old ones, to be stopped."""
        old = self.workers
        self.workers = list(workers)
        self.free[:] = self.workers
        self.away.clear()
        return old

    def first_present(self) -> Worker | None:
        return next((worker for worker in self.workers if worker not in self.away), None)

    def take_out(self, worker: Worker) -> bool:
        """The worker takes no batch until it is back. False: it was replaced meanwhile."""
        if worker not in self.workers:
            return False
        self.away.add(worker)
        if worker in self.free:
            self.free.remove(worker)
        return True

    def take_back(self, worker: Worker, *, is_busy: bool) -> bool:
        """The worker is back. False: it was not away, or was replaced meanwhile."""
        if worker not in self.away or worker not in self.workers:
            return False
        self.away.discard(worker)
        if not is_busy:
            self.free.append(worker)
        return True
