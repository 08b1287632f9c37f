"""A toy of token-level batching: sequences join the steps when a slot is free, and leave early."""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.queueing.deadlines import Deadlines
from headway.core.queueing.fairness import Account, Shares, Turns
from headway.errors import DeadlineExceeded, HeadwayError, ModelFailed
from headway.model import END
from headway.runtime.driving.decider import Decider
from headway.runtime.driving.event_loop import EventLoop
from headway.runtime.driving.shell import Shell
from headway.runtime.driving.streams import OpenStream, StreamCall, deliver_step
from headway.runtime.events import Observers
from headway.runtime.workers.inline import InlineWorker
from headway.runtime.workers.thread import ThreadWorker

Generate = Callable[[list[int]], list[str]]  # how far each sequence is -> its next token
STEP_S = 0.010  # where time is virtual


@dataclass
class Sequence:
    id: int
    call: StreamCall
    length: int
    account: Account
    deadline: float
    done: int = 0  # tokens


class Decision(NamedTuple):
    late: list[Sequence]
    step: list[Sequence]
    decider: Any

    def run(self) -> None:
        self.decider.run_step(self.step)

    async def run_async(self) -> None:
        await asyncio.sleep(STEP_S)
        self.run()


class TokenDecider(Decider[Sequence, Decision]):
    def __init__(self, generate: Generate, slots: int, weights: dict[str, float]) -> None:
        self.shell: Shell[Sequence, Decision] = Shell("toy", self, Observers(()))
        self._generate, self._slots, self._ids = generate, slots, iter(range(1, 10**9))
        self._live: dict[int, Sequence] = {}  # waiting or running
        self._running: dict[int, Sequence] = {}
        self._lines: dict[str, deque[Sequence]] = defaultdict(deque)
        self._shares = Shares(weights, Account)
        self.turns = Turns(self._shares)
        self._deadlines = Deadlines(self._live)
        self._is_stepping = False

    def open(self, length: int, *, tenant: str = "", deadline: float = math.inf) -> OpenStream:
        self.shell.check_open()
        call = StreamCall(next(self._ids), length, asyncio.get_running_loop())
        account = self._shares.account(tenant)
        self.shell.put(Sequence(call.item_ids[0], call, length, account, deadline), call.loop)
        return OpenStream(call, self._withdraw)

    def _withdraw(self, call: StreamCall) -> None:
        with self.shell.lock:
            self.shell.take_in()
            self._leave(call.item_ids[0])
        self.shell.drive_soon()

    def _leave(self, sequence_id: int) -> None:
        sequence = self._live.pop(sequence_id, None)
        if sequence is not None and self._running.pop(sequence_id, None) is None:
            self._shares.leave(sequence.account, 1)

    @property
    def is_idle(self) -> bool:
        return not self._live

    def start(self, event_loop: EventLoop) -> None:
        inline = InlineWorker(self.shell.current_loop)
        self._worker = inline if event_loop.is_virtual else ThreadWorker("toy")

    def accept(self, inbox: deque[Sequence]) -> None:
        while inbox:
            sequence = inbox.popleft()
            self._live[sequence.id] = sequence
            self._deadlines.add(sequence.deadline, sequence.id)
            self._lines[sequence.account.name].append(sequence)
            self._shares.enter(sequence.account, 1)
            self.turns.add(sequence.account)

    def decide(self, now: float) -> tuple[Decision, float]:
        late: list[Sequence] = []
        while self._deadlines.next_at() <= now:
            late.append(self._live[self._deadlines.first() or 0])
            self._leave(self._deadlines.pop())
        while len(self._running) < self._slots and (account := self.turns.first()) is not None:
            sequence = self._lines[account.name].popleft()
            if sequence.id in self._live:  # else it has left
                self._shares.advance(self._shares.place(account))
                self._shares.leave(account, 1)
                self._running[sequence.id] = sequence
        step = [] if self._is_stepping else list(self._running.values())
        self._is_stepping = self._is_stepping or bool(step)
        return Decision(late, step, self), self._deadlines.next_at()

    def act(self, decision: Decision) -> None:
        for sequence in decision.late:
            sequence.call.fail(DeadlineExceeded("too late"))
        if decision.step:
            self._worker.start(decision)

    def caller_of(self, arrival: Sequence) -> StreamCall:
        return arrival.call

    def unanswered(self) -> list[StreamCall]:
        return [sequence.call for sequence in self._live.values()]

    def forget(self) -> None:
        self._live.clear()

    def stop(self) -> None:
        self._worker.stop()

    def run_step(self, step: list[Sequence]) -> None:
        failure: HeadwayError | None = None
        try:
            tokens = self._generate([sequence.done for sequence in step])
            deliver_step(zip((sequence.call for sequence in step), tokens, strict=True))
        except Exception as error:  # noqa: BLE001  the model is user code
            failure = ModelFailed(str(error))
        ended = [each for each in step if failure or each.done + 1 == each.length]
        deliver_step((each.call, failure or END) for each in ended)
        if (stepped := self.shell.step(lambda _: self._note(step, ended))) and stepped[1]:
            self.act(stepped[1])
        self.shell.check_drained()

    def _note(self, step: list[Sequence], ended: list[Sequence]) -> bool:
        self._is_stepping = False
        for sequence in step:
            sequence.done += 1
            self._shares.charge(sequence.account, 1)
            if sequence in ended:
                self._leave(sequence.id)
        return True
