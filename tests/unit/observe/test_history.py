"""The last batches are kept, the oldest make room, and records have one order over all models."""

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.items import Batch, FireReason, Item
from headway.events import BatchFinished, BatchLost, BatchStarted, Cancelled, Refused, Stopped
from headway.observe import history as module
from headway.observe.history import MOST_ANSWERS, MOST_BATCHES, History
from headway.runtime.events import Observer


class Source:
    """A batcher, as far as its history goes."""

    def __init__(self, name: str = "m") -> None:
        self.name = name
        self.emit: Observer = lambda event: None
        self._ids = itertools.count(1)

    def observe(self, observer: Observer) -> None:
        self.emit = observer

    def follow(self, follower: object, *, is_optional: bool = False) -> None:
        assert is_optional  # direct calls go on without it

    def finish(self, items: int = 1) -> None:
        self.emit(BatchFinished(self.name, self._batch(items), 2.0, 1.0, 0, 0))

    def lose(self) -> None:
        self.emit(BatchLost(self.name, self._batch(1), 2.0, "killed", False, 0))

    def _batch(self, items: int) -> Batch:
        of = tuple(Item(number, 0.5) for number in range(items))
        reason = FireReason.IDLE
        return Batch(next(self._ids), of, items, 0, items, reason, 1.0, 0.9, 8, 0.0, None)


def watched(*names: str) -> tuple[History, list[Source]]:
    history, sources = History(clock=lambda: 3.0), [Source(name) for name in names]
    for source in sources:
        history.watch(source, version="1")
    return history, sources


def test_records_of_all_models_are_in_one_order() -> None:
    history, (a, b) = watched("a", "b")
    a.finish()
    b.lose()
    b.emit(Refused("b", "queue_full", "full"))
    a.finish(items=3)
    found = history.since(0, 10)
    assert [(model.model, record.number) for model, record in found.batches] == [
        *(("a", 1), ("b", 2), ("a", 4)),
    ]
    assert [(model.model, record.number) for model, record in found.incidents] == [("b", 3)]
    assert (found.next, found.left_out, found.has_gap) == (4, 0, False)
    later = history.since(found.next, 10)
    assert (later.batches, later.incidents, later.next) == ([], [], 4)


def test_of_too_many_the_newest_are_shown_and_the_others_counted() -> None:
    history, (a, b) = watched("a", "b")
    for _ in range(5):
        a.finish()
        b.finish()
    found = history.since(2, 3)
    assert [record.number for _, record in found.batches] == [8, 9, 10]
    assert found.left_out == 5


def test_only_visible_models_are_shown() -> None:
    history, (a, b) = watched("a", "b")
    a.finish()
    b.finish()
    found = history.since(0, 10, is_visible=lambda model: model == "a")
    assert [model.model for model, _ in found.batches] == ["a"]


@given(st.lists(st.integers(1, 25), max_size=12), st.integers(0, 15))
def test_it_is_bounded_by_items_and_says_what_it_forgot(sizes: list[int], since: int) -> None:
    history, [source] = watched("m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_ITEMS", 20)
        for items in sizes:
            source.finish(items)
    [model] = history.models()
    kept = [record.number for record in model.batches]
    forgotten = len(sizes) - len(kept)
    assert kept == list(range(forgotten + 1, len(sizes) + 1))
    held = sum(len(each.event.batch.items) for each in model.batches)
    assert held <= max([20, *sizes[-1:]])
    assert not forgotten or held + sizes[forgotten - 1] > 20
    assert history.since(since, 10).has_gap == (since < forgotten)


def test_it_is_bounded_by_batches() -> None:
    history, [source] = watched("m")
    for _ in range(MOST_BATCHES + 5):
        source.finish()
    assert len(history.models()[0].batches) == MOST_BATCHES
    assert history.since(0, 1).has_gap
    assert not history.since(5, 1).has_gap


def test_answers_that_made_room_are_a_gap_too() -> None:
    history = History(clock=lambda: 3.0)
    model = history.add("m", "1")
    for number in range(MOST_ANSWERS + 5):
        moments = {"arrived_at": 1.0, "first_at": 2.0}
        model.ended(number, None, prompt_tokens=1, tokens=1, code="stop", **moments)  # type: ignore[arg-type]
    assert len(history.since(0, 10).answers) == 10
    assert history.since(4, 1).has_gap
    assert not history.since(5, 1).has_gap


def test_an_item_that_was_answered_just_now_knows_its_times() -> None:
    history, [source] = watched("m")
    [model] = history.models()
    source.finish(items=3)
    assert model.timing_of(2) == b"queue;dur=400.000, linger;dur=100.000, run;dur=1000.000"
    assert model.timing_of(3) == b""
    for _ in range(module._JUST_NOW):
        source.finish(items=1)
    assert model.timing_of(0)
    assert model.timing_of(2) == b""  # too much has run since
    assert len(model._by_id) == module._JUST_NOW
    source.lose()
    assert model.timing_of(0)


def test_starts_and_callers_that_leave_are_no_records() -> None:
    history, [source] = watched("m")
    source.emit(Cancelled("m", started=False))
    source.emit(BatchStarted("m", source._batch(1)))
    assert history.since(0, 10).next == 0


def test_versions_that_are_gone_stay_a_while() -> None:
    history, [first] = watched("m")
    first.finish()
    first.emit(Stopped("m", 0))
    for _ in range(module._MOST_RETIRED):
        again = Source("m")
        history.watch(again, version="1")
        again.emit(Stopped("m", 0))
    assert len(history.since(0, 10).batches) == 1
    for _ in range(3):
        history.watch(Source("m"), version="1")
    assert history.since(0, 10).batches == []


def test_it_can_be_read_while_another_thread_writes() -> None:
    history, [source] = watched("m")
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            source.finish()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            numbers = [record.number for _, record in history.since(0, 100).batches]
            assert numbers == sorted(numbers)
    finally:
        ends.set()
        writer.join()
