"""The public API as type checkers see it. Checked by `mypy --strict`, never run."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, assert_type

import headway
from headway import BatchedFunction, Batcher, CostTable, Model, Tensor, TensorModel
from headway.events import BatchFinished, Event

# ---- @headway.batched


@headway.batched
async def embed(texts: list[str]) -> list[float]:
    return [0.0 for _ in texts]


@headway.batched
def classify(texts: list[str]) -> tuple[int, ...]:
    return tuple(1 for _ in texts)


@headway.batched(max_batch_size=32)
async def embed_with_options(texts: list[str]) -> list[float]:
    return [0.0 for _ in texts]


@headway.batched(max_batch_size=32, slo_ms=50, policy="auto")
def classify_with_options(texts: list[str]) -> list[int]:
    return [1 for _ in texts]


@headway.batched()
def of_lists(items: list[list[int]]) -> list[int]:
    return [len(item) for item in items]


assert_type(embed, BatchedFunction[str, float])
assert_type(classify, BatchedFunction[str, int])
assert_type(embed_with_options, BatchedFunction[str, float])
assert_type(classify_with_options, BatchedFunction[str, int])
assert_type(of_lists, BatchedFunction[list[int], int])


async def use_functions() -> None:
    assert_type(await embed("a"), float)
    assert_type(await classify("a"), int)
    assert_type(await embed("a", priority="high", deadline_ms=5), float)
    assert_type(await embed.many(["a", "b"]), list[float])
    assert_type(await of_lists([1, 2]), int)
    assert_type(await of_lists.many([[1], [2]]), list[int])
    assert_type(embed.call("a"), float)
    assert_type(classify_with_options.call("a", tenant="acme"), int)
    assert_type(embed.batcher, Batcher[str, float])
    await embed.close(drain_s=1.0)

    await embed(1)  # type: ignore[arg-type]
    await embed.many([1])  # type: ignore[list-item]
    embed.call(b"a")  # type: ignore[arg-type]


def as_callable() -> Callable[[str], Coroutine[Any, Any, float]]:
    return embed


def as_awaitable() -> Callable[[str], Awaitable[float]]:
    return embed


# ---- headway.Batcher


def predict(rows: list[int]) -> list[str]:
    return [str(row) for row in rows]


class Sentiment(Model[str, float]):
    def setup(self) -> None: ...

    def load(self) -> None: ...

    def prepare(self, raw: str) -> str:
        return raw

    def size(self, item: str) -> int:
        return len(item)

    def predict(self, items: list[str]) -> Sequence[float]:
        return [0.5 for _ in items]


class Chat(Model[str, str]):
    def stream(self, items: list[str]) -> Iterator[Sequence[str | headway.model.End | None]]:
        yield [None for _ in items]
        yield [headway.END for _ in items]


class AsyncChat(Model[str, str]):
    async def stream(self, items: list[str]) -> AsyncIterator[Sequence[Any]]:
        yield [headway.END for _ in items]


class Arrays(TensorModel):
    inputs = (Tensor("x", "float32", (-1, 3)),)
    outputs = (Tensor("y", "float32", (-1,)),)


async def use_batchers(batcher: Batcher[int, str]) -> None:
    async with batcher as opened:
        assert_type(opened, Batcher[int, str])
        assert_type(await opened.submit(1), str)
        assert_type(await opened.submit(1, priority="low", tenant="a", partition=("v", 2)), str)
        assert_type(await opened.many([1, 2]), list[str])
        assert_type(opened.call(1), str)
        assert_type(await opened.warm_up(1), CostTable)
        assert_type(opened.statistics().queued_items, int)
        async for chunk in opened.stream(1):
            assert_type(chunk, Any)
        await opened.submit(1, priority="urgent")  # type: ignore[arg-type]
        await opened.submit(1, deadline=5)  # type: ignore[call-arg]


async def use_models() -> None:
    async with Batcher(Sentiment(), max_batch_size=8, slo_ms=50) as batcher:
        assert_type(batcher, Batcher[str, float])
        assert_type(await batcher.submit("good"), float)
    annotated: Batcher[int, str] = Batcher(predict)
    Batcher[str, float](Sentiment)
    Batcher[Any, Any](Arrays())
    Batcher(predict, polcy="auto")  # type: ignore[call-arg]
    Batcher[int, str](predict, policy="soon")  # type: ignore[arg-type]
    await use_batchers(annotated)


# ---- observers and errors


def observer(event: Event) -> None:
    if isinstance(event, BatchFinished):
        assert_type(event.batch.rows, int)
        assert_type(event.ran_s, float)


observed: Batcher[int, str] = Batcher(predict, observers=[observer])


def retry_after(error: headway.Unavailable) -> float | None:
    if isinstance(error, headway.QueueFull):
        assert_type(error.limit, int)
    return error.retry_after_s


# ---- a server's models


def use_client(client: headway.Client) -> None:
    assert_type(client.predict("sentiment", "good", returns=float), float)
    assert_type(client.predict_many("sentiment", ["good"], returns=float), list[float])
    assert_type(client.predict("sentiment", "good", deadline_ms=50), Any)
    client.predict("sentiment", "good", dedline_ms=50)  # type: ignore[call-overload]
    client.predict("sentiment", "good", priority="soon")  # type: ignore[call-overload]


async def use_async_client(client: headway.AsyncClient) -> None:
    assert_type(await client.predict("sentiment", "good", returns=float), float)


async def pipeline(text: str, *, sentiment: headway.ModelHandle[str, float]) -> float:
    assert_type(await sentiment(text), float)
    assert_type(await sentiment.many([text]), list[float])
    return sentiment.call(text)


app = headway.asgi({"sentiment": Sentiment, "pipeline": pipeline}, slo_ms=50)
