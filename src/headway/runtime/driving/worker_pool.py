"""The workers of one driver: who is free, and who is away. Everything here is under its lock."""

from collections.abc import Iterable

from headway.runtime.jobs.jobs import Worker


class Crew:
    def __init__(self) -> None:
        self.workers: list[Worker] = []
        # Changed in place, never replaced: the driver has them at hand for each batch.
        self.free: list[Worker] = []
        self.away: set[Worker] = set()  # they cannot take a batch now

    @property
    def here(self) -> int:
        return len(self.workers) - len(self.away)

    def hire(self, workers: Iterable[Worker]) -> None:
        """These, all of them free, instead of any before."""
        self.workers = list(workers)
        self.free[:] = self.workers
        self.away.clear()

    def dismiss(self) -> list[Worker]:
        """Nobody is left. Returns whom to stop."""
        dismissed = self.workers
        self.hire(())
        return dismissed

    @property
    def numbers_here(self) -> list[int]:
        return [number for number, each in enumerate(self.workers) if each not in self.away]

    def take(self, number: int) -> Worker:
        """That one, if it is free; else any that is."""
        if len(self.free) > 1 and number < len(self.workers):
            worker = self.workers[number]
            if worker in self.free:
                self.free.remove(worker)
                return worker
        return self.free.pop()

    def first_here(self) -> Worker | None:
        return next((worker for worker in self.workers if worker not in self.away), None)

    def take_out(self, worker: Worker) -> bool:
        """It takes no batch until it is back. False: it was dismissed meanwhile."""
        if worker not in self.workers:
            return False
        self.away.add(worker)
        if worker in self.free:
            self.free.remove(worker)
        return True

    def take_back(self, worker: Worker, *, is_busy: bool) -> bool:
        """False: it was not away, or dismissed meanwhile."""
        if worker not in self.away or worker not in self.workers:
            return False
        self.away.discard(worker)
        if not is_busy:
            self.free.append(worker)
        return True
