"""Causes that cannot be staged on any machine; tests/integration/server/operating/test_causes.py
stages the others."""

from headway.core.items import Batch, FireReason, Item
from headway.events import BatchFinished
from headway.observe.history import History
from headway.observe.stories import requests_of, runs_of, tell


def test_a_model_is_not_to_blame_for_what_it_did_not_run() -> None:
    """Its worker had no CPU: of a second between the queue and back it ran for a tenth."""
    history = History(clock=lambda: 2.1)
    model = history.add("m", "1")
    item = Item(7, 0.5)
    batch = Batch(1, (item,), 1, 0, 1, FireReason.IDLE, 1.0, 0.9, 8, 0.0, None)
    model.observe(BatchFinished("m", batch, 2.0, 0.1, 0, 0))
    model.answered("mine", (item.id,), 0.5)
    [request] = requests_of(history, [model])
    cause = tell(request, runs_of([request])).cause
    assert cause.word == "handover"
    assert "the model ran for 100.0 ms of the 1000.0 ms" in cause.why
