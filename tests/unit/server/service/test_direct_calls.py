"""The direct way of both protocols: whom it counts, and until when."""

import asyncio
import time
from typing import Any

import pytest

from headway.config import KeyConfig
from headway.core.items import Batch, FireReason
from headway.hosting.registry import Registry
from headway.model import Tensor
from headway.runtime.driving.calls import DirectCall
from headway.server.auth.keys import Caller, KeyRing, new_key
from headway.server.service.direct_path import DirectPath
from headway.server.service.inference import Inference

BATCH = Batch(1, (), 1, 0, 1, FireReason.IDLE, 0.007, 0.005, 8, 0.0, None)


class Model:
    """Keeps what it is given."""

    name, version, is_ready, is_direct = "m", "1", True, True
    inputs = outputs = (Tensor("x", "float32", (-1, 1)),)
    takes_direct = True
    history = None

    def __init__(self) -> None:
        self.calls: list[DirectCall] = []
        self.ended: list[BaseException | None] = []

    def clock(self) -> float:
        return 0.0

    def submit_direct(self, call: DirectCall) -> bool:
        call.ran = ((BATCH, 0.003),)
        self.calls.append(call)
        return self.takes_direct

    def withdraw(self, call: DirectCall) -> None:
        pass

    def record(self, rows: int, started: float, error: BaseException | None) -> None:
        self.ended.append(error)


class Codec:
    is_slow = False

    def decode(self, message: str) -> Any:
        return None if message == "not ours" else ("id", {})

    def is_large(self, outputs: Any) -> bool:
        return self.is_slow

    def encode(self, request_id: str, outputs: Any, *_: Any) -> bytes:
        return b"answer"


class Asker:
    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.timings: list[bytes] = []

    def answer(self, body: bytes, timing: bytes = b"") -> str:
        self.timings.append(timing)
        return self.fail(body)

    def fail(self, answer: Any) -> str:
        self.answers.append(answer)
        return "its id"


class World:
    def __init__(self, **quota: Any) -> None:
        self.model, self.codec, self.asker = Model(), Codec(), Asker()
        registry = Registry()
        registry.add(self.model)  # type: ignore[arg-type]
        self.path = DirectPath(Inference(registry), lambda *_: self.codec)
        key = new_key()
        ring = KeyRing([KeyConfig(id="k", hash=key.hash, tenant="acme", **quota)], 0.0)
        self.caller: Caller = ring.find({"x-api-key": key.key})

    def start(self, *, model: str = "m", message: str = "") -> Any:
        return self.path.start(message, self.asker, self.caller, "", model)

    @property
    def running(self) -> int:
        return self.caller.allowance.running


def test_a_key_has_its_tenant_and_its_quota() -> None:
    it = World(concurrent=1)
    assert it.start() is not None
    assert (it.model.calls[0].tenant, it.running) == ("acme", 1)
    assert it.start() is None  # the general way says why
    it.model.calls[0].answered({})
    assert (it.asker.answers, it.model.ended, it.running) == ([b"answer"], [None], 0)
    assert it.asker.timings == [b"queue;dur=5.000, linger;dur=2.000, run;dur=3.000"]
    assert it.start() is not None
    it.model.calls[-1].failed(ValueError())
    assert it.running == 0


def test_what_does_not_go_this_way_costs_nothing() -> None:
    it = World(requests_per_s=1.0, rows_per_s=1.0, models=("m",))
    assert it.start(message="not ours") is None
    assert it.start(model="unknown") is None
    it.model.takes_direct = False
    assert it.start() is None
    assert it.running == 0
    assert it.caller.allowance.may_begin(1, time.monotonic())


def test_a_tenant_without_keys_is_what_the_request_says() -> None:
    it = World()
    it.path.start("", it.asker, None, "somebody", "m")
    assert it.model.calls[0].tenant == "somebody"


@pytest.mark.parametrize("turns", [0, 1])
def test_who_leaves_while_its_answer_is_encoded_gives_its_place_back(turns: int) -> None:
    async def left() -> World:
        it = World(concurrent=1)
        it.codec.is_slow = True
        pending = it.start()
        call = it.model.calls[0]
        call.is_done = True
        call.answered({})
        for _ in range(turns):
            await asyncio.sleep(0)
        pending.cancel()
        return it

    it = asyncio.run(left())
    assert it.running == 0
    assert [type(error) for error in it.model.ended] == [asyncio.CancelledError]
    assert it.asker.answers == []
