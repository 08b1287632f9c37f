"""Helpers for your own tests: virtual time, and fakes with behaviour. See
docs/guides/testing.md."""

from headway.testing.fakes import FakeModel, GatedModel, Recorder
from headway.testing.serving import client
from headway.testing.virtual_time import Deadlock, VirtualTimeLoop, now, run

__all__ = [
    "Deadlock",
    "FakeModel",
    "GatedModel",
    "Recorder",
    "VirtualTimeLoop",
    "client",
    "now",
    "run",
]
