"""How far a shell is in its life. The values end the sentence that a refused caller is told."""

from enum import Enum


class State(Enum):
    NEW = "has not been started: use `async with`"
    OPENING = "is still loading"
    OPEN = "is open"
    CLOSING = "is closing"
    CLOSED = "is closed"
    CRASHED = "has crashed"
    FORKED = (
        "was opened before this process was forked, and works in its parent only: open it in the "
        "child, after the fork (in a server's start-up hook), or use @headway.batched"
    )
