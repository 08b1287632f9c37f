"""One seed's worth of trouble, on virtual time: callers and faults against workers that die.

Everything is drawn from the seed. Callers come at random, vanish, have deadlines, stream; workers
are killed and frozen from outside; some inputs kill, hang, raise or need too much memory; memory
shrinks, the load triples, the model is reloaded. Whatever happens, what `Ledger` checks must hold.
"""

import asyncio
import gc
import hashlib
import random
import sys
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from fragile import FragileBatcher, FragileWorker

from headway.core.items import Batch, Item
from headway.errors import (
    HeadwayError,
    ModelFailed,
)
from headway.runtime.driving.calls import Call, DirectCall
from headway.runtime.driving.streams import StreamCall
from headway.testing import run

MOST_KILLERS = 2  # at a time: what one batch's reruns can tell apart
CHUNKS = 3


class Value(NamedTuple):
    """What a caller sends. Its digest comes back with the answer."""

    id: int
    kind: str  # healthy, kill, hang, raise, huge
    noise: int


def digest(value: Value) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


class AskOptions(NamedTuple):
    how: str  # submit, stream, direct
    priority: Any
    deadline_ms: float | None
    vanishes_after_s: float | None


class World:
    def __init__(self, seed: int, *, seconds: float = 1.0, rate: float = 40.0) -> None:
        self.random = random.Random(seed)
        self.seconds = seconds
        self.rate = rate * self.random.choice([0.3, 1.0, 2.0])
        self.ledger = Ledger()
        self.room = 1_000_000  # rows that fit into memory
        self.kernel_kills = self.random.random() < 0.3  # where memory runs out; else it raises
        self.options = self._options()
        self.batcher = self._new_batcher()
        self.at_hand = Counter[str]()  # inputs that cause trouble and are not settled yet
        self.hit_alone: set[int] = set()
        self.ids = 0
        self.load = 1.0
        self.closes_early = self.random.random() < 0.1
        self.is_closing = False
        self.tasks: set[asyncio.Task[None]] = set()

    def _options(self) -> dict[str, Any]:
        draw = self.random.choice
        policy = draw(["auto", "auto", "idle", "window"])
        return {
            "policy": policy,
            "max_wait_ms": 5.0 if policy == "window" else None,
            "max_batch_size": draw([1, 4, 16, 64]),
            "workers": draw([1, 1, 2, 3]),
            "max_queue": draw([64, 512, 4096]),
            "slo_ms": draw([None, None, 200.0]) if policy in ("auto", "idle") else None,
            "restart_s": draw([0.001, 0.02, 0.1]),
            "watchdog_s": 0.3,
        }

    def _new_batcher(self) -> FragileBatcher:
        return FragileBatcher(self._behave, **self.options)

    # ---- the model

    async def _behave(self, worker: FragileWorker, values: list[Value]) -> list[Any]:
        loop, kinds = asyncio.get_running_loop(), {value.kind for value in values}
        if worker.is_frozen and len(values) == 1:  # frozen while it was idle
            worker.is_frozen = values[0].id not in self.hit_alone
            self.hit_alone.add(values[0].id)
        seconds = 0.004 + 0.0003 * len(values)
        is_too_much = len(values) > self.room or "huge" in kinds
        if "kill" in kinds:
            loop.call_later(seconds / 2, worker.die, "exited with SIGSEGV")
        elif is_too_much and self.kernel_kills:
            loop.call_later(seconds / 2, lambda: worker.die("killed", out_of_memory=True))
        await worker.work(values, 1e9 if "hang" in kinds else seconds)
        if is_too_much:
            raise MemoryError("no room")
        if "raise" in kinds:
            raise ValueError("a bad one")
        return [(value.id, digest(value)) for value in values]

    # ---- life

    def run(self) -> "Ledger":
        run(self._live())
        return self.ledger

    async def _live(self) -> None:
        async with self.batcher:
            faults = asyncio.create_task(self._make_trouble())
            await self._send()
            await faults
            await asyncio.sleep(0.001)  # the last have come to the door
            self.is_closing = self.closes_early
            await self.batcher.close(drain_s=0.01 if self.closes_early else 60.0)
            await asyncio.gather(*self.tasks)
            await asyncio.sleep(0.001)  # those who were stopped in the middle have ended
        if self.ledger.wrong:
            raise self.ledger.wrong[0]
        assert self.ledger.is_settled, "somebody was never answered"
        self._check_nothing_is_left(self.batcher)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.seconds
        while loop.time() < end:
            await asyncio.sleep(self.random.expovariate(self.rate * self.load))
            for _ in range(self.random.choice([1, 1, 1, 1, 8])):
                task = asyncio.create_task(self._ask(self._value(), self._ask_options()))
                self.tasks.add(task)
                task.add_done_callback(self._ended)
            self._check_bounds()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if task.exception() is not None:
            self.ledger.wrong.append(task.exception())

    def _value(self) -> Value:
        self.ids += 1
        kind = "healthy"
        if self.random.random() < 0.03:
            kind = self.random.choice(["kill", "hang", "raise", "huge"])
            family = "raise" if kind == "raise" else "kill"
            if self.at_hand[family] >= (1 if kind == "raise" else MOST_KILLERS):
                kind = "healthy"
            else:
                self.at_hand[family] += 1
        return Value(self.ids, kind, self.random.randrange(1000))

    def _ask_options(self) -> AskOptions:
        chance = self.random.random
        return AskOptions(
            how=self.random.choice(["submit", "submit", "submit", "direct", "stream"]),
            priority=self.random.choice(["high", "normal", "normal", "normal", "low"]),
            deadline_ms=self.random.choice([20.0, 100.0, 400.0]) if chance() < 0.1 else None,
            vanishes_after_s=self.random.expovariate(50.0) if chance() < 0.1 else None,
        )

    # ---- callers

    async def _ask(self, value: Value, options: AskOptions) -> None:
        family = "raise" if value.kind == "raise" else "kill"
        self.ledger.asked(value)
        ask = {"submit": self._submit, "direct": self._direct, "stream": self._stream}[options.how]
        caller = asyncio.ensure_future(ask(value, options))
        if options.vanishes_after_s is not None:
            asyncio.get_running_loop().call_later(options.vanishes_after_s, caller.cancel)
        answer: Any
        try:
            answer = await caller
        except asyncio.CancelledError:
            answer = "vanished"
        except (HeadwayError, BrokenOff) as error:
            answer = error
        self.at_hand[family] -= value.kind != "healthy"
        self.ledger.settle(value, options, answer, is_closing=self.is_closing)

    async def _submit(self, value: Value, options: AskOptions) -> Any:
        batcher = self.batcher
        if options.priority == "normal" and options.deadline_ms is None:
            return await batcher.submit(value)
        return await batcher.submit(
            value, priority=options.priority, deadline_ms=options.deadline_ms
        )

    async def _direct(self, value: Value, options: AskOptions) -> Any:
        batcher = self.batcher
        told = asyncio.get_running_loop().create_future()
        call = Told(value, told)
        if not batcher.submit_direct(call):
            return await self._submit(value, options)
        try:
            outcome = await told
        except asyncio.CancelledError:
            batcher.withdraw(call)
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _stream(self, value: Value, options: AskOptions) -> Any:
        stream = self.batcher.stream(
            value, priority=options.priority, deadline_ms=options.deadline_ms
        )
        chunks: list[Any] = []
        try:
            async for chunk in stream:
                chunks.append(chunk)
        except ModelFailed as error:
            raise BrokenOff if chunks else error from None
        finally:
            await stream.aclose()
        assert [number for number, _ in chunks] == list(range(CHUNKS))
        [answer] = {answer for _, answer in chunks}
        return answer

    # ---- faults

    @property
    def faults(self) -> list[Callable[[], Awaitable[None]]]:
        return [self._kill, self._kill, self._freeze, self._shrink, self._triple, self._reload]

    async def _make_trouble(self) -> None:
        for fault in self.random.sample(self.faults, self.random.randrange(len(self.faults))):
            await asyncio.sleep(self.random.uniform(0.0, self.seconds / 3))
            await fault()

    async def _kill(self) -> None:
        worker = self.random.choice(self.batcher.fragile_workers)
        if self._may_hit(worker):
            worker.die()
            self.ledger.faults["worker killed"] += 1

    async def _freeze(self) -> None:
        worker = self.random.choice(self.batcher.fragile_workers)
        if self._may_hit(worker):
            worker.freeze()
            self.ledger.faults["worker frozen"] += 1

    def _may_hit(self, worker: FragileWorker) -> bool:
        """Whoever kills the same lone request twice cannot be told from what it carries."""
        jobs = self.batcher.decider.jobs.values()
        alone = {
            job.calls[0].value.id for job in jobs if job.worker is worker and len(job.calls) == 1
        }
        if alone & self.hit_alone:
            return False
        self.hit_alone |= alone
        return True

    async def _shrink(self) -> None:
        self.ledger.faults["memory shrunk"] += 1
        self.room = self.random.choice([1, 2, 5, 20])
        await asyncio.sleep(0.3)
        self.room = 1_000_000

    async def _triple(self) -> None:
        self.ledger.faults["load tripled"] += 1
        self.load = 3.0
        await asyncio.sleep(0.4)
        self.load = 1.0

    async def _reload(self) -> None:
        """A new one beside the old one; then switch, and drain the old one."""
        self.ledger.faults["model reloaded"] += 1
        new, old = self._new_batcher(), self.batcher
        await new.__aenter__()
        self.batcher = new
        await old.close(drain_s=60.0)
        self._check_nothing_is_left(old)

    # ---- what holds

    def _check_bounds(self) -> None:
        statistics = self.batcher.statistics()
        policy = self.batcher.policy
        # Who was lost with a worker keeps its place beside a queue that has filled up since.
        held = 3 * policy.workers * policy.max_batch_size
        assert statistics.queued_rows <= policy.max_queue + held, "the queue is not bounded"
        assert statistics.crashed is None

    def _check_nothing_is_left(self, batcher: FragileBatcher) -> None:
        decider = batcher.decider
        assert decider.shell.crash is None, decider.shell.crash
        left = list(reachable(decider, Item, Batch, Call, DirectCall, StreamCall))
        assert not left, f"left behind: {left[:3]}"


class LongWorld(World):
    """The same for hours, with a look at what it holds from time to time."""

    def __init__(self, seed: int, *, hours: float) -> None:
        super().__init__(seed, seconds=3600.0 * hours, rate=0.5)
        self.held: list[Held] = []
        self.closes_early = False

    async def _make_trouble(self) -> None:
        loop, look_at = asyncio.get_running_loop(), 0.0
        end = loop.time() + self.seconds
        while loop.time() < end:
            await asyncio.sleep(self.random.expovariate(1 / 120.0))
            fault = self.random.choice(self.faults[:-1])  # reloaded, it would start afresh
            await fault()
            if loop.time() >= look_at:
                look_at = loop.time() + self.seconds / 12
                self.held.append(self._look())

    def _look(self) -> "Held":
        gc.collect()
        decider = self.batcher.decider
        return Held(
            hours=asyncio.get_running_loop().time() / 3600,
            blocks=sys.getallocatedblocks(),
            objects=sum(1 for _ in reachable(decider, object)),
            waiting=len(self.tasks),
        )


class Held(NamedTuple):
    """What there was at one moment."""

    hours: float
    blocks: int  # of memory, in the whole process
    objects: int  # that the decider keeps alive
    waiting: int  # callers


class Told(DirectCall):
    """A caller without a future. Told twice, it says so."""

    __slots__ = ("_told",)

    def __init__(self, value: Value, told: "asyncio.Future[Any]") -> None:
        super().__init__(value)
        self._told = told

    def answered(self, result: Any) -> None:
        if not self._told.cancelled():
            self._told.set_result(result)  # raises where it has been told before

    def failed(self, error: BaseException) -> None:
        if not self._told.cancelled():
            self._told.set_result(error)


class BrokenOff(Exception):
    """A stream's batch failed after its reader's first chunk."""


class Ledger:
    """Who asked, and what became of it: each exactly once, and as it may."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: Counter[str] = Counter()
        self.wrong: list[Any] = []
        self._open: set[int] = set()

    @property
    def is_settled(self) -> bool:
        return not self._open

    def asked(self, value: Value) -> None:
        self._open.add(value.id)

    def settle(self, value: Value, options: AskOptions, answer: Any, *, is_closing: bool) -> None:
        assert value.id in self._open, f"{value} was settled twice"
        self._open.discard(value.id)
        outcome = self._outcome(value, answer)
        self.outcomes[value.kind, outcome] += 1
        allowed = {"queue_full", "shed"} | _EXPECTED[value.kind]
        if options.how == "stream":
            allowed.add("broken_off")
        if options.deadline_ms is not None:
            allowed.add("deadline_exceeded")
        if options.vanishes_after_s is not None:
            allowed.add("vanished")
        if is_closing:
            allowed.add("closed")
        assert outcome in allowed, f"{value} with {options}: {outcome} ({answer!r})"

    def _outcome(self, value: Value, answer: Any) -> str:
        if answer == "vanished":
            return "vanished"
        if isinstance(answer, BrokenOff):
            return "broken_off"
        if isinstance(answer, HeadwayError):
            return answer.code
        assert answer == (value.id, digest(value)), "an answer to the wrong caller"
        return "answered"

    def add(self, other: "Ledger") -> None:
        self.outcomes += other.outcomes
        self.faults += other.faults


_EXPECTED = {
    "healthy": {"answered"},
    "kill": {"poison", "model_failed"},
    "hang": {"poison", "model_failed"},
    "raise": {"model_failed"},
    "huge": {"model_failed", "poison"},
}


_ELSEWHERE = (World, asyncio.AbstractEventLoop, type, types.ModuleType, types.FunctionType)


def reachable(root: object, *kinds: type) -> Iterator[object]:
    """Every object of those kinds that `root` keeps alive, however it is stored."""
    seen, stack = {id(root)}, [root]
    while stack:
        each = stack.pop()
        if isinstance(each, kinds):
            yield each
        for child in gc.get_referents(each):
            if not isinstance(child, _ELSEWHERE) and id(child) not in seen:
                seen.add(id(child))
                stack.append(child)
