"""The v2 routes over a fake model: what each answers, and what each refuses."""

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy
import pytest

from headway.core.lifecycle.health import Health
from headway.errors import (
    DeadlineExceeded,
    Forbidden,
    HeadwayError,
    InvalidInput,
    NotReady,
    UnknownModel,
)
from headway.hosting.registry import Array, Ask, Registry
from headway.hosting.statistics import ModelStatistics
from headway.model import Tensor
from headway.server.bodies.json_body import SMALL_BYTES
from headway.server.families.v2.handlers import V2
from headway.server.service.inference import Inference
from headway.wire.messages import Request, Response, StreamResponse


class Doubler:
    """Doubles `x` into `y`; streams the words of a text."""

    signature = labels = language = None
    media_type = unready = ""
    only_streams = is_direct = is_simple = False
    meaning_of_items = "several"

    def __init__(self, name: str = "m", *, streams: bool = False) -> None:
        self.name = name
        self.version = "1"
        self.inputs: Sequence[Tensor] = [Tensor("x", "float32", (-1, 2))]
        self.outputs: Sequence[Tensor] = [Tensor("y", "float32", (-1, 2))]
        self.max_batch_size = 8
        self.streams = streams
        self.is_ready = True
        self.health = Health.READY
        self.statistics = ModelStatistics()
        self.asks: list[Ask] = []
        self.fails_after: int | None = None
        self.closed = 0

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def devices(self) -> list[str]:
        return [""]

    def takes_parameter(self, name: str) -> bool:
        return name == "max_tokens"

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        self.asks.append(ask)
        return {"y": inputs["x"] * 2}

    async def predict(self, value: Any, ask: Ask) -> Any:
        self.asks.append(ask)
        return value.upper() if isinstance(value, str) else {"y": numpy.array(value)}

    async def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        self.asks.append(ask)
        try:
            for index, word in enumerate(value.split()):
                if index == self.fails_after:
                    raise DeadlineExceeded("too late")
                yield word
        finally:
            self.closed += 1


def serve(*models: Doubler) -> V2:
    registry = Registry()
    for model in models or (Doubler(),):
        registry.add(model)
    return V2(Inference(registry, version="0.1.0"))


async def ask(v2: V2, method: str, path: str, body: Any = b"") -> Any:
    """What the route at this path answers."""
    for row in v2.routes():
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", row.template)
        found = re.fullmatch(pattern, path)
        if row.method == method and found:
            return read(await row.handler(request(body, method), **found.groupdict()))
    raise AssertionError(f"no route {method} {path}")


def request(body: Any = b"", method: str = "POST", **headers: str) -> Request:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, "/", "", named, body, "id")


def read(answer: Response | StreamResponse) -> Any:
    assert isinstance(answer, Response)
    assert (answer.status, answer.content_type) == (200, "application/json")
    return json.loads(answer.body) if answer.body else None


def infer_body(data: Any = ((1, 2),), **more: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": data}],
        **more,
    }


async def test_infer_as_json() -> None:
    answer = read(await serve().infer(request(infer_body(id="7")), "m"))
    assert answer == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 4.0]}],
    }


async def test_infer_as_binary() -> None:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": [1, 2],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 8},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    answer = await serve().infer(
        request(
            head + struct.pack("<2f", 1, 2),
            inference_header_content_length=str(len(head)),
        ),
        "m",
    )
    ((name, length),) = answer.headers
    assert name == "Inference-Header-Content-Length"
    assert answer.content_type == "application/octet-stream"
    assert answer.body[int(length) :] == struct.pack("<2f", 2, 4)


async def test_a_raw_request_is_answered_in_binary() -> None:
    answer = await serve().infer(
        request(struct.pack("<2f", 1, 2), inference_header_content_length="0"), "m"
    )
    assert answer.body.endswith(struct.pack("<2f", 2, 4))


@pytest.mark.parametrize("length", ["", "-1", "x", "1.0", "９", "9" * 30])
async def test_a_header_length_that_is_no_number_is_refused(length: str) -> None:
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        await serve().infer(request(infer_body(), inference_header_content_length=length), "m")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "z"}, "input 'z' is unknown, and input 'x' is missing; the model takes x"),
        ({"datatype": "FP64"}, "input 'x': the model takes FP32, not FP64"),
        ({"shape": [2]}, r"input 'x': shape \[2\], the model takes \[rows, 2\]"),
        ({"shape": [2, 1]}, r"input 'x': shape \[2\], the model takes \[rows, 2\]|takes"),
        ({"shape": [1, 1, 2]}, "the model takes"),
    ],
)
async def test_what_the_model_does_not_take_is_refused_by_name(
    change: dict[str, Any], said: str
) -> None:
    body = infer_body([1, 2])
    body["inputs"][0] |= change
    with pytest.raises(InvalidInput, match=said):
        await serve().infer(request(body), "m")


async def test_no_rows_and_uneven_rows_are_refused() -> None:
    body = infer_body([])
    body["inputs"][0]["shape"] = [0, 2]
    with pytest.raises(InvalidInput, match="'x': there are no rows"):
        await serve().infer(request(body), "m")
    model = Doubler()
    model.inputs = [*model.inputs, Tensor("w", "int8", (-1,))]
    body = infer_body()
    body["inputs"].append({"name": "w", "shape": [2], "datatype": "INT8", "data": [1, 2]})
    with pytest.raises(InvalidInput, match="'w' has 2 rows, the input before it has 1"):
        await serve(model).infer(request(body), "m")


async def test_an_unknown_input_or_output_is_refused() -> None:
    body = infer_body()
    body["inputs"].append({"name": "w", "shape": [1], "datatype": "INT8", "data": [1]})
    with pytest.raises(InvalidInput, match="input 'w' is unknown"):
        await serve().infer(request(body), "m")
    model = Doubler()
    with pytest.raises(InvalidInput, match="output 'w' is unknown; the model gives y"):
        await serve(model).infer(request(infer_body(outputs=[{"name": "w"}])), "m")
    assert model.asks == []


@pytest.mark.real_time
async def test_a_large_body_is_decoded_elsewhere_and_answered_all_the_same() -> None:
    rows = 40_000
    body = infer_body([1.5] * (2 * rows))
    body["inputs"][0]["shape"] = [rows, 2]
    asked = request(body)
    assert len(asked.body) > SMALL_BYTES
    (output,) = read(await serve().infer(asked, "m"))["outputs"]
    assert output["data"] == [3.0] * (2 * rows)
    with pytest.raises(InvalidInput, match="not valid JSON"):
        await serve().infer(request(asked.body[:-1]), "m")


@pytest.mark.parametrize("shape", [[2], [2, 1]])
async def test_one_value_a_row_is_described_and_sent_with_an_axis_of_one(shape: list[int]) -> None:
    model = Doubler()
    model.inputs = [Tensor("x", "float32", (-1,))]
    model.outputs = [Tensor("y", "float32", (-1,))]
    v2 = serve(model)
    body = infer_body([1, 2])
    body["inputs"][0]["shape"] = shape
    (output,) = read(await v2.infer(request(body), "m"))["outputs"]
    assert (output["shape"], output["data"]) == ([2, 1], [2.0, 4.0])
    metadata = await ask(v2, "GET", "/v2/models/m")
    assert [each["shape"] for each in metadata["inputs"] + metadata["outputs"]] == [[-1, 1]] * 2
    config = await ask(v2, "GET", "/v2/models/m/config")
    assert [each["dims"] for each in config["input"] + config["output"]] == [[1]] * 2


@pytest.mark.parametrize(
    ("parameters", "headers", "ask"),
    [
        ({}, {}, Ask()),
        ({"priority": 0}, {}, Ask()),
        ({"priority": 1}, {}, Ask("high")),
        ({"priority": 2}, {}, Ask()),
        ({"priority": 3}, {}, Ask("low")),
        ({"timeout": 1500}, {}, Ask(deadline_ms=1.5)),
        ({"timeout": 0}, {}, Ask()),
        ({"timeout": 10**400}, {}, Ask(deadline_ms=1e12)),
        ({}, {"headway_priority": "Low"}, Ask("low")),
        ({"priority": 1}, {"headway_priority": "low"}, Ask("high")),
        ({"timeout": 9000}, {"headway_timeout_ms": "2.5"}, Ask(deadline_ms=2.5)),
        ({}, {"headway_tenant": "a"}, Ask(tenant="a")),
    ],
)
async def test_parameters_and_headers_say_how_urgent_it_is(
    parameters: dict[str, Any], headers: dict[str, str], ask: Ask
) -> None:
    model = Doubler()
    await serve(model).infer(request(infer_body(parameters=parameters), **headers), "m")
    assert model.asks == [ask]


@pytest.mark.parametrize(
    ("parameters", "headers"),
    [
        ({"priority": -1}, {}),
        ({"priority": "high"}, {}),
        ({"priority": True}, {}),
        ({"timeout": 1.5}, {}),
        ({}, {"headway_priority": "urgent"}),
        ({}, {"headway_timeout_ms": "0"}),
        ({}, {"headway_timeout_ms": "nan"}),
        ({}, {"headway_timeout_ms": "soon"}),
    ],
)
async def test_an_urgency_that_means_nothing_is_refused(
    parameters: dict[str, Any], headers: dict[str, str]
) -> None:
    with pytest.raises(InvalidInput, match=r"riority|imeout"):
        await serve().infer(request(infer_body(parameters=parameters), **headers), "m")


async def test_unknown_models_and_versions_are_not_found() -> None:
    v2 = serve()
    for handler in (v2.infer, v2.model_ready):
        with pytest.raises(UnknownModel):
            await handler(request(infer_body()), "nobody")
        with pytest.raises(UnknownModel):
            await handler(request(infer_body()), "m", "2")
    for what in ("", "/config", "/stats"):
        for model in ("nobody", "m/versions/2"):
            with pytest.raises(UnknownModel):
                await ask(v2, "GET", f"/v2/models/{model}{what}")


async def test_health() -> None:
    model = Doubler()
    v2 = serve(model)
    assert read(await v2.live(request())) == {"live": True}
    assert read(await v2.ready(request())) == {"ready": True}
    assert read(await v2.model_ready(request(), "m", "1")) == {"name": "m", "ready": True}
    model.is_ready = False
    assert read(await v2.live(request())) == {"live": True}
    for waiting in (v2.ready(request()), v2.model_ready(request(), "m"), v2.infer(request(), "m")):
        with pytest.raises(NotReady):
            await waiting
    model.health = Health.DEAD
    with pytest.raises(NotReady, match="needs a restart"):
        await v2.live(request())


async def test_descriptions() -> None:
    v2 = serve()
    server = await ask(v2, "GET", "/v2")
    assert (server["name"], server["version"]) == ("headway", "0.1.0")
    assert "binary_tensor_data" in server["extensions"]
    assert "system_shared_memory" not in server["extensions"]
    assert read(await v2.models(request())) == {"models": ["m"]}
    assert await ask(v2, "GET", "/v2/models/m") == {
        "name": "m",
        "versions": ["1"],
        "platform": "headway",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    }
    config = await ask(v2, "GET", "/v2/models/m/config")
    assert config["max_batch_size"] == 8
    [port] = config["input"]
    assert port == {"name": "x", "data_type": "TYPE_FP32", "dims": [2], "format": "FORMAT_NONE"}
    assert config["model_transaction_policy"] == {"decoupled": False}


async def test_statistics_of_one_and_of_all() -> None:
    a, b = Doubler("a"), Doubler("b")
    a.statistics.record(rows=3, queue_ns=10, compute_ns=5, ok=True)
    v2 = serve(a, b)
    assert [each["name"] for each in (await ask(v2, "GET", "/v2/models/stats"))["model_stats"]] == [
        "a",
        "b",
    ]
    (found,) = (await ask(v2, "GET", "/v2/models/a/versions/1/stats"))["model_stats"]
    assert (found["inference_count"], found["inference_stats"]["success"]) == (
        3,
        {"count": 1, "ns": 15},
    )


async def test_the_repository_can_be_read_but_not_changed() -> None:
    sleeping = Doubler("b")
    sleeping.is_ready = False
    v2 = serve(Doubler("a"), sleeping)
    index = await ask(v2, "POST", "/v2/repository/index")
    assert [(each["name"], each["state"]) for each in index] == [
        ("a", "READY"),
        ("b", "UNAVAILABLE"),
    ]
    assert len(await ask(v2, "POST", "/v2/repository/any/index", {"ready": True})) == 1
    with pytest.raises(InvalidInput):
        await ask(v2, "POST", "/v2/repository/index", {"ready": "yes"})
    for change in ("load", "unload"):
        with pytest.raises(Forbidden, match="loaded at start"):  # nobody keeps these
            await ask(v2, "POST", f"/v2/repository/models/a/{change}")


async def test_settings_can_be_read_but_not_changed() -> None:
    v2 = serve()
    trace = await ask(v2, "GET", "/v2/models/m/trace/setting")
    assert trace["trace_level"] == ["OFF"]
    assert await ask(v2, "POST", "/v2/trace/setting", {"trace_rate": None}) == trace
    assert (await ask(v2, "POST", "/v2/logging", {"log_info": True}))["log_error"] is True
    with pytest.raises(InvalidInput, match="'trace_level' cannot be changed"):
        await ask(v2, "POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(UnknownModel):
        await ask(v2, "GET", "/v2/models/nobody/trace/setting")


async def test_cuda_memory_is_empty_and_refused() -> None:
    v2 = serve()
    assert await ask(v2, "GET", "/v2/cudasharedmemory/status") == []
    assert await ask(v2, "POST", "/v2/cudasharedmemory/unregister") is None
    with pytest.raises(InvalidInput):
        await ask(v2, "POST", "/v2/cudasharedmemory/region/r/register")


async def test_generate_joins_what_streams() -> None:
    model = Doubler(streams=True)
    body = {"text_input": "a b", "id": "7", "parameters": {"priority": 1}}
    answer = read(await serve(model).generate(request(body), "m"))
    assert answer == {"id": "7", "model_name": "m", "model_version": "1", "text_output": "ab"}
    assert model.asks == [Ask("high")]
    assert model.closed == 1


async def test_generate_takes_one_answer_from_a_model_that_does_not_stream() -> None:
    assert read(await serve().generate(request({"text_input": "a"}), "m"))["text_output"] == "A"
    assert read(await serve().generate(request({"x": [1, 2]}), "m"))["y"] == [1, 2]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"other":1}', b'{"text_input":"a","id":[]}'])
async def test_a_body_that_says_nothing_to_generate_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        await serve().generate(request(body), "m")


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        ({"text_input": "a", "max_tokens": 2}, {"max_tokens": 2}),
        ({"x": "a", "max_tokens": 2, "parameters": {"other": 1}}, {"max_tokens": 2, "other": 1}),
        ({"text_input": "a", "stop": ["x"]}, {"stop": ["x"]}),
        ({"text_input": "a", "stream": False}, None),
        ({"text_input": "a", "stream": None, "sequence_id": 0}, None),
    ],
)
async def test_what_generate_does_not_know_is_for_the_model(body: Any, parameters: Any) -> None:
    model = Doubler()
    await serve(model).generate(request(body), "m")
    assert [ask.parameters for ask in model.asks] == [parameters]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_input": "a", "x": "b"}, "'x' and 'text_input' are the same input"),
        ({"text_input": "a", "n": 1, "parameters": {"n": 2}}, "'n' is given twice"),
        ({"text_input": "a", "stream": True}, "use 'generate_stream' instead"),
    ],
)
async def test_what_generate_cannot_mean_is_refused(body: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await serve().generate(request(body), "m")


class Said(str):
    """A text that says more, as a transcript does."""

    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


@pytest.mark.parametrize("result", [Said("hello"), {"text": Said("hello")}, [Said("hello")]])
async def test_generate_answers_a_text_of_a_class_of_its_own(result: Any) -> None:
    model = Doubler()
    model.predict = lambda value, ask: asyncio.sleep(0, result)  # type: ignore[method-assign]
    answer = read(await serve(model).generate(request({"text_input": "a"}), "m"))
    assert "hello" in str(answer)


async def events_of(answer: StreamResponse | Response) -> list[Any]:
    assert isinstance(answer, StreamResponse)
    assert answer.content_type == "text/event-stream; charset=utf-8"
    found = []
    async for chunk in answer.chunks:
        assert chunk.startswith(b"data: ")
        assert chunk.endswith(b"\n\n")
        found.append(json.loads(chunk[6:]))
    return found


async def test_generate_stream_sends_each_chunk_as_an_event() -> None:
    for model, wanted in (
        (Doubler(streams=True), ["a", "b", "c"]),
        (Doubler(), ["A B C"]),
    ):
        answer = await serve(model).generate_stream(request({"text_input": "a b c"}), "m")
        events = await events_of(answer)
        assert [event["text_output"] for event in events] == wanted


async def test_an_error_before_the_first_event_is_an_ordinary_one() -> None:
    model = Doubler(streams=True)
    model.fails_after = 0
    with pytest.raises(HeadwayError):
        await serve(model).generate_stream(request({"text_input": "a b"}), "m")
    assert model.closed == 1


async def test_an_error_after_the_first_event_is_an_event() -> None:
    model = Doubler(streams=True)
    model.fails_after = 1
    answer = await serve(model).generate_stream(request({"text_input": "a b c"}), "m")
    first, last = await events_of(answer)
    assert first["text_output"] == "a"
    assert last == {"error": "too late"}


async def test_a_client_that_leaves_before_the_first_event_closes_the_stream() -> None:
    model = Doubler(streams=True)
    answer = await serve(model).generate_stream(request({"text_input": "a b c"}), "m")
    assert isinstance(answer, StreamResponse)
    chunks: Any = answer.chunks
    await chunks.aclose()
    assert model.closed == 1
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)


async def test_a_stream_of_nothing_ends_at_once() -> None:
    answer = await serve(Doubler(streams=True)).generate_stream(request({"text_input": ""}), "m")
    assert await events_of(answer) == []
