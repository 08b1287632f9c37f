"""Messages between a batcher and its model process. One call is in flight at a time; calls have
numbers."""

from enum import IntEnum
from typing import NamedTuple

from headway.runtime.workers.process.recipe import Recipe


class Kind(IntEnum):
    # to the model's process
    SPEC = 1  # a WorkerSpec: become this model
    PREDICT = 2
    STREAM = 3
    IMPORT = 12  # names of modules, while it waits for its model
    SERVE = 10  # the connection is the model's until it ends
    # from there
    READY = 4  # loaded
    RESULT = 5
    RESULT_WITH_FAILURES = 6  # some of the list are Failures
    STEP = 7  # of a stream
    END = 8
    FAILURE = 9  # of a call, or of the load
    # both ways, on a connection that was handed to the model
    WORD = 11


class WorkerSpec(NamedTuple):
    """Everything a process needs to become a worker."""

    name: str
    recipe: Recipe
    arguments: list[str]  # sys.argv
    path: list[str]  # sys.path
    folder: str  # its working directory
    main: str | None  # the file of `__main__`, if the model is defined there
    environment: dict[str, str]  # all of it
    cores: tuple[int, ...]  # none: all
    memory_bytes: int | None
    log_level: int
