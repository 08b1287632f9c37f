"""Models that call models: each step is batched on its own, and inherits what the request has of
deadline, priority and tenant; who leaves takes his steps with him; a circle is refused."""

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import headway
from headway.core.lifecycle.dependencies import find_cycle
from headway.hosting.registry import Ask
from headway.models.catalogue import build

pytestmark = pytest.mark.real_time  # threads, and an ASGI client
QUIET: dict[str, Any] = {"warm_up": False}
MOST_S = 30.0


class Lengths(headway.Model[str, int]):
    batches: list[list[str]] = []  # noqa: RUF012 - of the test that runs

    def predict(self, items: list[str]) -> list[int]:
        self.batches.append(list(items))
        return [len(item) for item in items]


class Words(headway.Model[str, list[str]]):
    def predict(self, items: list[str]) -> list[list[str]]:
        return [item.split() for item in items]


async def longest(
    text: str, *, words: headway.ModelHandle[str, list[str]], lengths: headway.ModelHandle[str, int]
) -> str:
    """The longest word: a pipeline, one request at a time."""
    found = await words(text)
    if not found:
        raise headway.InvalidInput("there is no word")
    sizes = await lengths.many(found)
    return max(zip(sizes, found, strict=True))[1]


class Longest(headway.Model[str, str]):
    """The same as a model over batches, in a thread."""

    uses = ("words", "lengths")

    def predict(self, items: list[str]) -> list[str]:
        found = self.models["words"].call_many(items)
        flat = [word for words in found for word in words]
        sizes = dict(zip(flat, self.models["lengths"].call_many(flat), strict=True))
        return [max(words, key=lambda word: sizes[word]) for words in found]


class LongestAsync(headway.Model[str, str]):
    uses = ("words", "lengths")

    async def predict(self, items: list[str]) -> list[str]:
        found = await self.models["words"].many(items)
        sizes = [await self.models["lengths"].many(words) for words in found]
        return [words[size.index(max(size))] for words, size in zip(found, sizes, strict=True)]


PARTS: dict[str, Any] = {"words": Words, "lengths": Lengths}


@pytest.mark.parametrize("kind", [longest, Longest, LongestAsync])
def test_a_model_calls_others_and_their_steps_are_seen(kind: Any) -> None:
    with TestClient(headway.asgi({"longest": kind, **PARTS}, **QUIET)) as client:
        answer = client.post("/v1/predict/longest", json="one three five eleven")
        assert (answer.status_code, answer.json()) == (200, "eleven")
        metrics = client.get("/metrics").text
        assert 'headway_stage_calls_total{model="longest",stage="words"} 1' in metrics
        assert 'headway_stage_calls_total{model="longest",stage="lengths"} 1' in metrics
        assert 'headway_stage_failures_total{model="longest",stage="lengths"} 0' in metrics
        [line] = re.findall(r'stage_seconds_total{model="longest",stage="lengths"} (.*)', metrics)
        milliseconds = float(line) * 1e3
        assert abs(milliseconds - round(milliseconds)) > 1e-6, "uvloop's clock has nothing finer"


class Doubled(headway.TensorModel):
    inputs = (headway.Tensor("x", "float32", (-1, 3)),)
    outputs = (headway.Tensor("y", "float32", (-1, 3)),)

    def predict(self, inputs: Any) -> Any:
        return {"y": 2 * inputs["x"]}


class Quadrupled(Doubled):
    """It gives another model all of its rows, or one row after the other."""

    uses = ("doubled",)

    def predict(self, inputs: Any) -> Any:
        doubled = self.models["doubled"]
        whole = doubled.call({"x": doubled.call(inputs)["y"]})
        assert [row.tolist() for row in doubled.call_many(list(inputs["x"]))] == (
            2 * inputs["x"]
        ).tolist()
        return whole


@pytest.mark.parametrize("rows", [1, 3])
def test_a_model_over_arrays_gives_another_whole_arrays(rows: int) -> None:
    models: Any = {"quadrupled": Quadrupled, "doubled": Doubled}
    x = {"name": "x", "datatype": "FP32", "shape": [rows, 3], "data": [1, 2, 3] * rows}
    with TestClient(headway.asgi(models, **QUIET)) as client:
        answer = client.post("/v2/models/quadrupled/infer", json={"inputs": [x]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["data"] == [4, 8, 12] * rows


def test_an_error_of_a_pipeline_or_of_its_step_is_the_callers() -> None:
    with TestClient(headway.asgi({"longest": longest, **PARTS}, **QUIET)) as client:
        answer = client.post("/v1/predict/longest", json=" ")
        assert (answer.status_code, answer.json()) == (400, {"error": "there is no word"})


async def test_steps_of_several_requests_share_batches() -> None:
    Lengths.batches = []
    settings = {"policy": "window", "max_wait_ms": 200.0, "max_batch_size": 4}
    models = {"longest": longest, "words": Words, "lengths": {"target": Lengths, **settings}}
    inside = headway.asgi(models, **QUIET)
    async with inside.lifespan():
        handle = inside.models["longest"]
        assert await asyncio.gather(*(handle("a bb") for _ in range(2))) == ["bb", "bb"]
    assert sorted(map(len, Lengths.batches)) == [4]


# ---- what a step inherits


class Gate(headway.Model[str, str]):
    """Its only batch stands until it is let go; tells what became of those behind it."""

    entered = threading.Event()
    is_open = threading.Event()

    def predict(self, items: list[str]) -> list[str]:
        self.entered.set()
        assert self.is_open.wait(MOST_S)
        return items

    @classmethod
    def shut(cls) -> None:
        cls.entered, cls.is_open = threading.Event(), threading.Event()


async def outer(text: str, *, gate: headway.ModelHandle[str, str]) -> str:
    return await gate(text)


class OuterThread(headway.Model[str, str]):
    uses = ("gate",)

    def predict(self, items: list[str]) -> list[str]:
        return self.models["gate"].call_many(items)


OUTER = [outer, OuterThread]


def gated(kind: Any) -> Any:
    Gate.shut()
    gate = {"target": Gate, "max_batch_size": 1}
    return headway.asgi({"outer": kind, "gate": gate}, **QUIET)


@pytest.mark.parametrize("kind", OUTER)
async def test_a_step_has_the_deadline_of_its_request(kind: Any) -> None:
    inside = gated(kind)
    async with inside.lifespan():
        busy = asyncio.ensure_future(inside.models["gate"]("first"))
        await asyncio.to_thread(Gate.entered.wait, MOST_S)
        with pytest.raises(headway.DeadlineExceeded):
            await inside.models["outer"]("late", deadline_ms=50)
        Gate.is_open.set()
        assert await busy == "first"
        assert await inside.models["outer"]("in time", deadline_ms=30_000) == "in time"


@pytest.mark.parametrize("kind", OUTER)
async def test_who_leaves_takes_his_steps_out_of_the_queue(kind: Any) -> None:
    inside = gated(kind)
    async with inside.lifespan():
        gate = inside.models["gate"]._registry.get("gate")
        busy = asyncio.ensure_future(inside.models["gate"]("first"))
        await asyncio.to_thread(Gate.entered.wait, MOST_S)
        leaving = asyncio.ensure_future(inside.models["outer"]("gone"))
        await until(lambda: gate.batcher.statistics().queued_items == 1)
        leaving.cancel()
        await until(lambda: gate.batcher.statistics().queued_items == 0)
        Gate.is_open.set()
        assert await busy == "first"


async def test_a_step_has_the_priority_and_the_tenant_of_its_request() -> None:
    inside = gated(outer)
    async with inside.lifespan():
        served = inside.models["gate"]._registry.get("gate")
        seen: list[Any] = []
        served.observe(lambda event: seen.append(event))
        Gate.is_open.set()
        search = inside.models["gate"]._registry.get("outer")
        await search.predict("x", Ask("high", 20_000, "acme"))
    items = [item for event in seen for item in getattr(getattr(event, "batch", None), "items", ())]
    assert {(item.priority.name, item.tenant) for item in items} == {("HIGH", "acme")}
    assert all(item.deadline < float("inf") for item in items)


async def until(is_so: Any) -> None:
    async with asyncio.timeout(MOST_S):
        while not is_so():  # noqa: ASYNC110 - no event tells; it takes a few turns of the loop
            await asyncio.sleep(0)


# ---- what is refused


class A(headway.Model[str, str]):
    uses = ("b",)

    def predict(self, items: list[str]) -> list[str]:
        return items


class B(A):
    uses = ("a",)


class Undeclared(headway.Model[str, str]):
    uses = ("words",)

    def predict(self, items: list[str]) -> list[str]:
        return self.models["lengths"].call_many(items)  # type: ignore[return-value]


class OneText(A):
    uses = "words"


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        ({"a": A, "b": B}, {}, "models call each other in a circle: [ab] → [ab] → [ab]"),
        ({"a": A}, {}, "uses: there is no model 'b'; there are: other"),
        (
            {"a": OneText, "words": Words},
            {},
            r'uses: a list of names is expected: uses = \["words"',
        ),
        ({"a": A, "b": Words}, {"worker": "process"}, "worker: a calls other models"),
    ],
)
def test_what_cannot_be_is_refused_at_load(models: Any, settings: Any, message: str) -> None:
    entries = {name: {"target": each} for name, each in models.items()}
    entries["a"].update(settings)
    entries["other"] = {"target": Words}
    with TestClient(headway.asgi(entries, **QUIET)) as client:
        index = client.post("/v2/repository/index", json={}).json()
    assert [each for each in index if re.search(message, each.get("reason", ""))], index


def test_alone_it_is_told_how_to_serve_them_together() -> None:
    told = r"no model 'b': serve it beside a, from a headway\.toml with \[\[models\]\]"
    with pytest.raises(headway.ConfigError, match=told), TestClient(headway.asgi({"a": A})):
        pass


def test_a_model_that_is_not_declared_is_named() -> None:
    with TestClient(headway.asgi({"a": Undeclared, **PARTS}, **QUIET)) as client:
        answer = client.post("/v1/predict/a", json="x")
        assert answer.status_code == 500
        assert "a does not list 'lengths' in `uses`: uses = ['words', 'lengths']" in answer.text


@pytest.mark.parametrize(
    ("uses", "found"),
    [
        ({"a": ["a"]}, ["a", "a"]),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, ["a", "b", "c", "a"]),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, None),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, None),  # of b, not of a
    ],
)
def test_a_circle_is_found(uses: dict[str, list[str]], found: list[str] | None) -> None:
    assert find_cycle(uses, "a") == found


async def pick(text: str, *, words: headway.ModelHandle[str, list[str]], place: int = 0) -> str:
    return (await words(text))[place]


def test_a_pipeline_takes_parameters_from_its_callers() -> None:
    with TestClient(headway.asgi({"pick": pick, **PARTS}, **QUIET)) as client:
        assert client.post("/v1/predict/pick", json="one two").json() == "one"
        assert client.post("/v1/predict/pick?place=1", json="one two").json() == "two"


PIPELINE = """
import headway

class Words(headway.Model[str, list[str]]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.split()[0] for item in items]

async def first(text: str, *, words: headway.ModelHandle[str, str]) -> str:
    return await words(text)

def wrong(text: str, *, words: headway.ModelHandle[str, str]) -> str:
    return text

async def two(text: str, more: str, *, words: headway.ModelHandle[str, str]) -> str:
    return text
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "calls models, so it must be `async def`"),
        ("two", "a pipeline takes one value and, after a `\\*`, the models"),
    ],
)
def test_a_pipeline_that_cannot_be_says_why(name: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline_app.py"
    file.write_text(PIPELINE)
    with pytest.raises(headway.ConfigError, match=message):
        build(f"{file}:{name}", {})


class Iterating(headway.Model[str, list[int]]):
    """Its iterable runs in its own thread: in the event loop, nothing else would run meanwhile."""

    uses = ("lengths",)

    def predict(self, items: list[str]) -> list[list[int]]:
        threads = set()

        def words() -> Iterator[str]:
            for item in items:
                threads.add(threading.get_ident())
                yield item

        found = self.models["lengths"].call_many(words())
        assert threads == {threading.get_ident()}
        return [found for _ in items]


class OneTextAsked(headway.Model[str, str]):
    uses = ("lengths",)

    def predict(self, items: list[str]) -> list[str]:
        self.models["lengths"].call_many(items[0])
        return items


async def test_an_iterable_of_values_runs_where_it_was_given() -> None:
    inside = headway.asgi({"iterating": Iterating, "lengths": Lengths}, **QUIET)
    async with inside.lifespan():
        assert await inside.models["iterating"]("abc") == [3]


async def test_a_text_is_not_the_values_of_several_calls() -> None:
    inside = headway.asgi({"one": OneTextAsked, "lengths": Lengths}, **QUIET)
    async with inside.lifespan():
        with pytest.raises(headway.InvalidInput, match="several calls here, not 'abc'"):
            await inside.models["one"]("abc")
        with pytest.raises(headway.InvalidInput, match="several calls here, not 'abc'"):
            await inside.models["lengths"].many("abc")
