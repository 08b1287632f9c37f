"""The real Batcher in random worlds, on virtual time.

Whatever arrives, leaves, fails, expires or closes: each caller ends exactly once, with its own
answer. A caller that hangs is a `Deadlock`; an answer that crosses over is seen, because every
value is echoed back.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway import Batcher, Closed, DeadlineExceeded, ModelFailed, QueueFull, Shed
from headway.events import BatchFinished, Crashed
from headway.testing import Recorder, now, run

FAST = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


GRACE_S = 0.001  # past its deadline, a caller whose batch still runs is told so


@dataclass(frozen=True)
class Caller:
    """What one caller will do. `id` makes its value unlike any other's."""

    id: int
    at_ms: int
    priority: Any
    tenant: str
    partition: Any
    size: int
    deadline_ms: int | None
    leaves_after_ms: int | None
    poison: bool  # makes its whole batch raise
    own_error: bool  # is answered with an exception of its own


@dataclass(frozen=True)
class World:
    callers: tuple[Caller, ...]
    options: dict[str, Any]
    cost_ms: int
    row_ms: float
    close_at_ms: int | None
    drain_ms: int


callers = st.builds(
    Caller,
    id=st.just(0),
    at_ms=st.integers(0, 60),
    priority=st.sampled_from(["high", "normal", "low"]),
    tenant=st.sampled_from(["", "a", "b"]),
    partition=st.sampled_from([None, None, None, "p", ()]),
    size=st.integers(0, 9),
    deadline_ms=st.none() | st.integers(0, 60),
    leaves_after_ms=st.none() | st.none() | st.integers(0, 40),
    poison=st.sampled_from([False] * 7 + [True]),
    own_error=st.sampled_from([False] * 7 + [True]),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    drawn = draw(st.lists(callers, min_size=1, max_size=30))
    policy = draw(st.sampled_from(["auto", "idle", "window", "static"]))
    size = draw(st.integers(1, 8))
    options: dict[str, Any] = {
        "policy": policy,
        "max_batch_size": size,
        "max_queue": draw(st.sampled_from([3, 4096])) if policy != "static" else 4096,
        "workers": draw(st.integers(1, 3)),
        "order": draw(st.sampled_from(["fifo", "shortest"])),
        "max_batch_cost": draw(st.none() | st.integers(1, 40)),
        "max_reruns": draw(st.sampled_from([0, 2, 16])),
        "tenants": draw(st.sampled_from([{}, {"a": 3.0}])),
        "slo_ms": draw(st.none() | st.integers(5, 50)) if policy in ("auto", "idle") else None,
    }
    if policy == "window":
        options["max_wait_ms"] = draw(st.integers(0, 20))
    return World(
        callers=tuple(Caller(n, *list(vars(c).values())[1:]) for n, c in enumerate(drawn)),
        options=options,
        cost_ms=draw(st.integers(0, 20)),
        row_ms=draw(st.sampled_from([0.0, 0.5])),
        # a rest under `static` leaves only when the batcher closes
        close_at_ms=draw(
            st.integers(0, 120) if policy == "static" else st.none() | st.integers(0, 80)
        ),
        drain_ms=draw(st.sampled_from([0, 10, 100_000])),
    )


class Echo:
    """Answers with the caller itself; remembers who ran."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ran: set[int] = set()
        self.running = 0

    async def __call__(self, batch: list[Caller]) -> list[Any]:
        options = self.world.options
        assert 1 <= len(batch) <= options["max_batch_size"]
        assert len({caller.partition for caller in batch}) == 1
        largest = max(caller.size for caller in batch)
        assert len(batch) == 1 or len(batch) * largest <= (options["max_batch_cost"] or 10**9)
        self.running += 1
        assert self.running <= options["workers"]
        try:
            self.ran |= {caller.id for caller in batch}
            await asyncio.sleep((self.world.cost_ms + self.world.row_ms * len(batch)) / 1e3)
        finally:
            self.running -= 1
        if any(caller.poison for caller in batch):
            raise ValueError("poisoned")
        return [KeyError(caller.id) if caller.own_error else caller for caller in batch]


@dataclass
class Outcome:
    caller: Caller
    result: Any
    submitted_at: float
    ended_at: float


async def call(batcher: Batcher[Any, Any], caller: Caller) -> Outcome:
    await asyncio.sleep(caller.at_ms / 1e3)
    submitted_at = now()
    result: Any
    try:
        async with asyncio.timeout(
            None if caller.leaves_after_ms is None else caller.leaves_after_ms / 1e3
        ):
            result = await batcher.submit(
                caller,
                priority=caller.priority,
                tenant=caller.tenant,
                partition=caller.partition,
                deadline_ms=caller.deadline_ms,
            )
    except Exception as error:  # noqa: BLE001  looked at below
        result = error
    return Outcome(caller, result, submitted_at, now())


async def live(world: World) -> tuple[list[Outcome], Echo, Recorder]:
    model, recorder = Echo(world), Recorder()
    batcher: Batcher[Any, Any] = Batcher(
        model, size=lambda caller: caller.size, observers=[recorder], **world.options
    )
    async with batcher:
        tasks = [asyncio.create_task(call(batcher, caller)) for caller in world.callers]
        if world.close_at_ms is not None:
            await asyncio.sleep(world.close_at_ms / 1e3)
            await batcher.close(drain_s=world.drain_ms / 1e3)
        outcomes = await asyncio.gather(*tasks)
        await asyncio.sleep(10.0)  # what was cut off comes back
        statistics = batcher.statistics()
        assert statistics.crashed is None
        assert (statistics.queued_items, statistics.running_batches) == (0, 0)
    assert model.running == 0
    return outcomes, model, recorder


def check(outcome: Outcome, world: World, ran: bool) -> None:  # noqa: C901  one case each
    caller, result = outcome.caller, outcome.result
    waited_s = outcome.ended_at - outcome.submitted_at
    match result:
        case Caller():
            assert result == caller, "another caller's answer"
            assert not caller.poison
            assert not caller.own_error
            assert ran
        case KeyError():
            assert caller.own_error
            assert result.args == (caller.id,)
        case ModelFailed():
            assert ran
            assert isinstance(result.__cause__, ValueError)
            if world.options["max_reruns"] == 16 and world.options["max_batch_size"] <= 8:
                assert caller.poison, "a neighbour of poison was not answered"
        case DeadlineExceeded():
            assert caller.deadline_ms is not None
            expired = waited_s - caller.deadline_ms / 1e3
            if ran:  # and was not done by then
                assert -1e-6 <= expired <= GRACE_S + 1e-6
            else:
                assert expired <= 1e-6
        case TimeoutError():
            assert caller.leaves_after_ms is not None
            assert abs(waited_s - caller.leaves_after_ms / 1e3) < 1e-6
        case QueueFull():
            assert world.options["max_queue"] == 3
            assert not ran
        case Shed():
            assert world.options["slo_ms"] is not None
            assert not ran
        case Closed():
            assert world.close_at_ms is not None
            assert outcome.ended_at >= world.close_at_ms / 1e3 - 1e-6
        case _:
            raise AssertionError(f"an outcome nobody expects: {result!r}")


@FAST
@given(worlds())
def test_every_caller_ends_exactly_once_with_its_own_answer(world: World) -> None:
    outcomes, model, recorder = run(live(world))
    assert [outcome.caller for outcome in outcomes] == list(world.callers)
    for outcome in outcomes:
        check(outcome, world, outcome.caller.id in model.ran)
    assert not any(isinstance(event, Crashed) for event in recorder.events)
    items = [i for e in recorder.events if isinstance(e, BatchFinished) for i in e.batch.items]
    assert len({item.id for item in items}) == len(items), "an item left in two batches"


@FAST
@given(worlds())
def test_without_trouble_everyone_is_answered(world: World) -> None:
    """No deadlines, no limits, nobody leaves: then nobody is refused, and poison fails alone."""
    calm = World(
        callers=tuple(
            Caller(
                c.id,
                c.at_ms,
                c.priority,
                c.tenant,
                c.partition,
                c.size,
                None,
                None,
                c.poison,
                False,
            )
            for c in world.callers
        ),
        options=world.options | {"max_queue": 4096, "slo_ms": None, "max_reruns": 16},
        cost_ms=world.cost_ms,
        row_ms=world.row_ms,
        close_at_ms=100 if world.options["policy"] == "static" else None,
        drain_ms=100_000,
    )
    outcomes, _, _ = run(live(calm))
    for outcome in outcomes:
        if outcome.caller.poison:
            assert isinstance(outcome.result, ModelFailed)
        else:
            assert outcome.result == outcome.caller
