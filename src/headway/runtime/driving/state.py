"""How far a driver is in its life. The values end the sentence that a refused caller is told."""

from enum import Enum


class State(Enum):
    NEW = "has not been started: use `async with`"
    OPENING = "is still loading"
    OPEN = "is open"
    CLOSING = "is closing"
    CLOSED = "is closed"
    CRASHED = "has crashed"
