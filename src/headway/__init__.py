"""Headway: the batching brain for model inference.

In transit, *headway* is the time between two departures: leave now with few, or wait a moment for
more. That is what an inference server tunes, and what this package decides for you.
"""

import headway.compiled  # noqa: F401 -- first: it refuses a core that is out of date
from headway import events
from headway.client import AsyncClient, Client
from headway.core.costs import CostTable
from headway.errors import (
    Closed,
    ConfigError,
    DeadlineExceeded,
    HeadwayError,
    InputTooLarge,
    InvalidInput,
    ModelFailed,
    QueueFull,
    Shed,
    Unavailable,
)
from headway.generator import Generator
from headway.model import END, Cancel, Model, ModelHandle, Tensor, TensorModel
from headway.observe.metrics import Metrics
from headway.runtime.batching.batcher import Batcher
from headway.runtime.batching.decorator import BatchedFunction, batched
from headway.single import single
from headway.wiring import asgi, serve

__version__ = "0.1.0"

__all__ = [
    "END",
    "AsyncClient",
    "BatchedFunction",
    "Batcher",
    "Cancel",
    "Client",
    "Closed",
    "ConfigError",
    "CostTable",
    "DeadlineExceeded",
    "Generator",
    "HeadwayError",
    "InputTooLarge",
    "InvalidInput",
    "Metrics",
    "Model",
    "ModelFailed",
    "ModelHandle",
    "QueueFull",
    "Shed",
    "Tensor",
    "TensorModel",
    "Unavailable",
    "asgi",
    "batched",
    "events",
    "serve",
    "single",
]
