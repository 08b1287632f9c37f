"""Runs batches in a thread of its own: for plain `def` models, which would block the event loop."""

import logging
import queue
import weakref

from headway.runtime.calling.threads import start_thread
from headway.runtime.jobs.jobs import Job, run_to_end

_log = logging.getLogger(__name__)
_Inbox = queue.SimpleQueue[Job | None]


class ThreadWorker:
    """Its thread references the inbox only, so it ends when its worker is garbage collected."""

    is_lost = False  # a thread always comes back, or hangs in the model

    def __init__(self, name: str) -> None:
        self._inbox: _Inbox = queue.SimpleQueue()
        start_thread(_work, self._inbox, name=name)
        weakref.finalize(self, self._inbox.put, None).atexit = False

    def start(self, job: Job) -> None:
        self._inbox.put(job)

    def stop(self) -> None:
        """Stop after the current job, if any."""
        self._inbox.put(None)


def _work(inbox: _Inbox) -> None:
    while (job := inbox.get()) is not None:
        try:
            run_to_end(job.work())
        except BaseException:  # noqa: BLE001  a bug of ours; without its thread every later job would wait
            _log.exception("a job raised; its worker goes on")
        del job  # do not keep a batch's values alive while waiting for the next
