"""A model that reuses its output buffer, and writes into its inputs, under 32 clients at once: each
gets the answer to its own question, on every stack."""

import asyncio
import gc
import queue
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy
import pytest

pytest.importorskip("grpc")
pytest.importorskip("tritonclient.grpc")
pytest.importorskip("tritonclient.http")
pytest.importorskip("uvicorn")

import tritonclient.grpc
import tritonclient.http
from served_models import MOST_S
from stacks import Stacks, Watched

from headway import Tensor, TensorModel

pytestmark = pytest.mark.real_time
CLIENTS, CALLS = 32, 12


class Reuses(TensorModel):
    inputs: ClassVar = [Tensor("x", "float32", (-1, 64))]
    outputs: ClassVar = [Tensor("y", "float32", (-1, 64))]

    def load(self) -> None:
        self.out = numpy.zeros((CLIENTS, 64), numpy.float32)

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        count = len(batch["x"])
        numpy.multiply(batch["x"], 2, out=self.out[:count])
        batch["x"][...] = -1
        return {"y": self.out[:count]}


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as running:
        models = [
            Watched("reuses", Reuses(), max_batch_size=CLIENTS),
            Watched("reuses_one", Reuses(), max_batch_size=1),
        ]
        for model in models:
            running.run(model.start).result(MOST_S)
            running.registry.add(model)
        yield running
        for model in models:
            running.run(lambda model=model: model.close(drain_s=1)).result(MOST_S)  # type: ignore[misc]


@pytest.mark.parametrize("model", ["reuses", "reuses_one"])
@pytest.mark.parametrize("stack", ["http", "asgi", "grpc"])
def test_every_client_gets_its_own_answer(stacks: Stacks, stack: str, model: str) -> None:
    client: Any = tritonclient.grpc if stack.startswith("grpc") else tritonclient.http
    address = stacks.addresses.of(stack)
    wrong: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(number: int) -> None:
        with client.InferenceServerClient(address) as connection:
            for call in range(CALLS):
                value = float(number * CALLS + call)
                given = client.InferInput("x", [1, 64], "FP32")
                given.set_data_from_numpy(numpy.full((1, 64), value, numpy.float32))
                answer = connection.infer(model, [given]).as_numpy("y")
                if not (answer == 2 * value).all():
                    wrong.put((value, answer))

    # Clients that other tests left behind belong to this thread: gevent wants them to end in it.
    gc.collect()
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong.empty()


def test_so_does_every_caller_in_the_servers_process(stacks: Stacks) -> None:
    batcher = stacks.model("reuses").batcher

    async def all_at_once() -> list[Any]:
        values = [{"x": numpy.full((1, 64), n, numpy.float32)} for n in range(10 * CLIENTS)]
        return await asyncio.gather(*map(batcher.submit, values))

    answers = stacks.run(all_at_once).result(MOST_S)
    assert [answer["y"][0, 0] for answer in answers] == [2 * n for n in range(10 * CLIENTS)]
