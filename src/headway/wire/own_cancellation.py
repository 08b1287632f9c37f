"""Whether what is running is to stop, or something that it waits for was."""

import asyncio


def is_asked_to_stop(error: BaseException) -> bool:
    """Whether it is this task that is being cancelled or closed. Not where what it waits for is, or
    where a model raises such an error of its own; and an error may lie about its class."""
    kind = type(error)
    if issubclass(kind, GeneratorExit):
        return asyncio._get_running_loop() is None
    if not issubclass(kind, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
