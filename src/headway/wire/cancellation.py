"""Tasks that are cancelled, and tasks whose work is."""

import asyncio


def is_asked_to_stop() -> bool:
    """Whether it is this task that is being cancelled, not what it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
