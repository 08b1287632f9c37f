"""All events that a batcher reports to its observers, and the values in them.

Defined in `headway.runtime.events` and `headway.core`; this is where users import them from.
"""

from headway.core.items import Batch, FireReason, Item
from headway.runtime.events import (
    BatchFinished,
    BatchLost,
    BatchStarted,
    Cancelled,
    Crashed,
    Event,
    ItemTimes,
    Observer,
    OutOfMemory,
    Refused,
    Stopped,
    WorkerChanged,
)

__all__ = [
    "Batch",
    "BatchFinished",
    "BatchLost",
    "BatchStarted",
    "Cancelled",
    "Crashed",
    "Event",
    "FireReason",
    "Item",
    "ItemTimes",
    "Observer",
    "OutOfMemory",
    "Refused",
    "Stopped",
    "WorkerChanged",
]
