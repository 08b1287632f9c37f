"""Decisions. Pure: time is an argument, and nothing here reads a clock, a socket or a log."""

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import Costs, CostTable, next_probe, probe_order, probe_rows
from headway.core.items import (
    Action,
    Batch,
    FireReason,
    Item,
    Priority,
    Refusal,
    RefusalReason,
    Refuse,
    Run,
    Wait,
    new_item,
    split,
)
from headway.core.policy import Compose, Firing, Order, Policy
from headway.core.queueing.admission import refusal_error

__all__ = [
    "Action",
    "Batch",
    "Compose",
    "CostTable",
    "Costs",
    "FireReason",
    "Firing",
    "Item",
    "Order",
    "Policy",
    "Priority",
    "Refusal",
    "RefusalReason",
    "Refuse",
    "Run",
    "Scheduler",
    "Wait",
    "new_item",
    "next_probe",
    "probe_order",
    "probe_rows",
    "refusal_error",
    "split",
]
