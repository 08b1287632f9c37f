"""Runs batches in a thread of its own: for plain `def` models, which would block the event loop."""

import queue
import threading

from headway.runtime.jobs import Job


class ThreadWorker:
    is_lost = False  # a thread always comes back, or hangs in the model

    def __init__(self, name: str) -> None:
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # A daemon: a model that hangs must not keep the interpreter from ending.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def start(self, job: Job) -> None:
        self._inbox.put(job)

    def stop(self) -> None:
        """After the current job, if any."""
        self._inbox.put(None)

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            job.run()
            del job  # do not keep a batch's values alive while waiting for the next
