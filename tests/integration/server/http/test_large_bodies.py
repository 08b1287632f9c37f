"""One large body does not hold the others up: it is checked first, then decoded in a thread. What
counts here is where the work was done, not how long it took."""

import asyncio
import base64
import dataclasses
import gzip
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, TypeAlias, TypedDict

import numpy
import pytest

import headway
from headway.config import ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.server.bodies.background import background
from headway.server.run import make_app
from headway.wire.messages import Request, Response

pytestmark = pytest.mark.real_time
MIB = 2**20
RAN_ON = 2  # turns of the loop meanwhile, however little of it the machine gave
Vector: TypeAlias = Annotated[Any, headway.Tensor("embedding", "float32", (-1, 400))]


class Double(headway.TensorModel):
    inputs = (headway.Tensor("x", "float32", (-1, -1)),)
    outputs = (headway.Tensor("y", "float32", (-1, -1)),)

    def __init__(self) -> None:
        self.runs = 0

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        return {"y": batch["x"] * 2}


class Lengths(headway.TensorModel):
    inputs = (headway.Tensor("x", "object", (-1, -1)),)
    outputs = (headway.Tensor("y", "int64", (-1, -1)),)

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": numpy.vectorize(len)(batch["x"])}


class Echo(headway.Model[Any, Any]):
    inputs = (headway.Tensor("input", "object", (-1,)),)
    outputs = (headway.Tensor("output", "object", (-1,)),)

    def predict(self, items: list[Any]) -> list[Any]:
        return items


class Embed(headway.Model[str, Vector]):
    def predict(self, items: list[str]) -> list[Vector]:
        return [numpy.full(400, 0.1, numpy.float32)] * len(items)


class Pair(TypedDict):
    query: str
    document: str


class Rank(headway.Model[Pair, float]):
    def predict(self, items: list[Pair]) -> list[float]:
        return [1.0] * len(items)


class Same(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return items


@contextmanager
def calls_here() -> Iterator[Counter[str]]:
    """How often functions are entered in this thread, by name."""
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


class Pictures(headway.Model[str, bytes]):
    inputs = (headway.Tensor("prompt", "object", (-1,)),)
    outputs = (headway.Tensor("image", "object", (-1,)),)

    def predict(self, items: list[str]) -> list[bytes]:
        return [b"\x89PNG" * 50_000 for _ in items]


class Site:
    """An app over real models, and how often the loop turned while it answered."""

    def __init__(self, app: Any, double: Double) -> None:
        self.app = app
        self.double = double

    async def post(self, path: str, body: bytes, **headers: str) -> tuple[Response, int, int]:
        """Its answer, how many times work left the event loop, and the turns of the loop."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        before, turns = background.started, 0
        task = asyncio.ensure_future(self.app.handle(Request("POST", path, "", names, body, "id")))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return await task, background.started - before, turns

    async def post_large(self, path: str, body: bytes) -> Any:
        """The JSON of an answer that was encoded off the event loop, which ran on meanwhile."""
        answer, background_work, turns = await self.post(path, body)
        assert (answer.status, background_work) == (200, 1), answer.body[:200]
        assert turns > RAN_ON
        return json.loads(answer.body)


@asynccontextmanager
async def serving(config: ServerConfig | None = None) -> AsyncIterator[Site]:
    registry, double = Registry(), Double()
    hosted = []
    for name, model in (
        ("double", double),
        ("lengths", Lengths()),
        ("echo", Echo()),
        ("embed", Embed()),
        ("rank", Rank()),
        ("same", Same()),
        ("long", Long()),
        ("chat", LongChat()),
        ("pictures", Pictures()),
    ):
        served = Served(ModelConfig(name=name, target="t:t", warm_up=False), model=model)
        await served.start()
        registry.add(served)
        hosted.append(served)
    try:
        double.runs = 0  # those before traffic: is each row alone what it is in company?
        yield Site(make_app(registry, config or ServerConfig()), double)
    finally:
        for served in hosted:
            await served.close()


def infer(data: bytes, shape: list[int], datatype: str = "FP32") -> bytes:
    head = json.dumps({"name": "x", "datatype": datatype, "shape": shape})
    return b'{"inputs":[' + head[:-1].encode() + b',"data":' + data + b"}]}"


EMPTY_LISTS = b"[" + b"[]," * 300_000 + b"[]]"
TOO_MANY = b"[" + b"[]," * 600_000 + b"[]]"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v2/models/double/infer", infer(EMPTY_LISTS, [4, 4]), 400, "shape"),
        ("/v2/models/double/infer", infer(EMPTY_LISTS, [2**21 + 1, 0]), 413, "rows"),
        ("/v2/models/double/infer", infer(EMPTY_LISTS, [0, 0]), 400, "no rows"),
        (
            "/v2/models/double/infer",
            infer(b'["a"' + b" " * MIB + b"]", [1, 1], "BYTES"),
            400,
            "FP32",
        ),
        ("/v2/models/double/infer", infer(b"[1" + b" " * MIB + b"]", [9, 2**30]), 413, "elements"),
        ("/v1/predict/echo", TOO_MANY, 413, "1048576 values"),
        ("/v1/predict/echo", b"[" * MIB + b"]" * MIB, 400, "recursion"),
        ("/v1/predict/echo", b'"' + b" " * 17 * MIB + b'"', 413, "binary tensors"),
        ("/v1/embeddings", b'{"model":"echo","input":' + TOO_MANY + b"}", 413, "values"),
        ("/v2/models/echo/generate", b'{"text_input":' + TOO_MANY + b"}", 413, "values"),
        ("/v2/repository/index", b'{"ready":' + TOO_MANY + b"}", 413, "values"),
    ],
)
async def test_a_large_body_that_is_refused_is_read_off_the_loop(
    path: str, body: bytes, status: int, words: str
) -> None:
    async with serving() as site:
        answer, background_work, turns = await site.post(path, body)
        assert words in answer.body.decode()
        assert answer.status == status
        if len(body) < 16 * MIB:
            assert background_work == 1
            assert turns > RAN_ON
        assert site.double.runs == 0


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("/v1/predict/echo", b"", b""),
        ("/v1/embeddings", b'{"model":"embed","input":', b"}"),
        ("/models/embed", b'{"inputs":', b"}"),
        ("/v2/models/echo/generate", b'{"text_input":', b"}"),
        ("/v1/models/echo:predict", b'{"instances":[', b"]}"),
        ("/v2/models/echo/infer", b'{"inputs":[],"id":', b"}"),
        ("/v2/repository/index", b'{"ready":', b"}"),
    ],
)
async def test_the_limit_on_json_is_the_operators(path: str, before: bytes, after: bytes) -> None:
    async with serving(ServerConfig(max_json_bytes=200_000)) as site:
        answer, _, _ = await site.post(path, before + b'"' + b"a" * 200_000 + b'"' + after)
        assert answer.status == 413
        assert b"at most 200000 are allowed" in answer.body


async def test_a_packed_body_is_unpacked_and_read_off_the_loop() -> None:
    async with serving() as site:
        body = gzip.compress(infer(EMPTY_LISTS, [4, 4]))
        assert len(body) < 10_000
        answer, background_work, _ = await site.post(
            "/v2/models/double/infer", body, content_encoding="gzip"
        )
        assert (answer.status, background_work) == (400, 2)


@pytest.mark.parametrize("is_nested", [False, True])
async def test_many_numbers_come_and_go_in_a_thread(is_nested: bool) -> None:
    async with serving() as site:
        rows = numpy.arange(400_000, dtype="f4").reshape(400, 1000) / 8
        data = json.dumps((rows if is_nested else rows.ravel()).tolist()).encode()
        answer, background_work, turns = await site.post(
            "/v2/models/double/infer", infer(data, [400, 1000])
        )
        assert (answer.status, background_work) == (200, 2)  # decoded, encoded
        assert turns > RAN_ON
        (output,) = json.loads(answer.body)["outputs"]
        assert output["shape"] == [400, 1000]
        assert output["data"] == (rows * 2).ravel().tolist()


class Long(headway.Model[str, str]):
    """One text, and its answer is 4 MiB of it."""

    def predict(self, items: list[str]) -> list[str]:
        return [item * (4 * MIB) for item in items]


@dataclasses.dataclass
class Said:
    messages: list[dict[str, Any]]


class LongChat(headway.Model[Said, str]):
    def predict(self, items: list[Said]) -> list[str]:
        return ["a" * (4 * MIB) for _ in items]


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("said", ["a", "é"])
async def test_one_long_text_goes_out_in_a_thread(is_binary: bool, said: str) -> None:
    """An array of one element was never large."""
    async with serving() as site:
        end = b',"parameters":{"binary_data_output":true}}' if is_binary else b"}"
        body = infer(json.dumps([said]).encode(), [1], "BYTES").replace(b'"x"', b'"input"')
        answer, background_work, turns = await site.post("/v2/models/long/infer", body[:-1] + end)
        assert (answer.status, background_work) == (200, 1), answer.body[:200]
        assert turns > RAN_ON
        if is_binary:
            assert answer.body.endswith((said * 4 * MIB).encode())
        else:
            (output,) = json.loads(answer.body)["outputs"]
            assert output["data"] == [said * 4 * MIB]


async def test_one_long_answer_of_a_chat_goes_out_in_a_thread() -> None:
    async with serving() as site:
        body = b'{"model":"chat","messages":[{"role":"user","content":"a"}]}'
        choice = (await site.post_large("/v1/chat/completions", body))["choices"][0]
        assert choice["message"]["content"] == "a" * (4 * MIB)


async def test_images_go_out_in_a_thread() -> None:
    async with serving() as site:
        body = b'{"model":"pictures","prompt":"a","n":2}'
        images = (await site.post_large("/v1/images/generations", body))["data"]
        assert [base64.b64decode(each["b64_json"]) for each in images] == [b"\x89PNG" * 50_000] * 2


async def test_many_texts_come_in_a_thread() -> None:
    async with serving() as site:
        texts = [["a,b", 'c"]', "é" * 90]] * 3_000
        body = infer(json.dumps(texts).encode(), [3_000, 3], "BYTES")
        answer, background_work, _ = await site.post("/v2/models/lengths/infer", body)
        assert (answer.status, background_work) == (200, 1)
        assert json.loads(answer.body)["outputs"][0]["data"] == [3, 3, 180] * 3_000


@pytest.mark.parametrize(
    "data",
    [
        b"[[1,2],[3" + b" " * MIB + b"]]",
        b"[[1,2],[3,4]" + b" " * MIB + b",[5]]",
        b"[[1,2]3,[4" + b" " * 300_000 + b"]]",
        b"[1[,2],[3,4" + b" " * 300_000 + b"]]",
        b"[1,2,3,4,5" + b" " * 300_000 + b"]",
        b'[[1,2],[3,"4"' + b" " * 300_000 + b"]]",
    ],
)
async def test_long_data_of_another_shape_is_refused(data: bytes) -> None:
    async with serving() as site:
        answer, _, _ = await site.post("/v2/models/double/infer", infer(data, [2, 2]))
        assert answer.status == 400
        assert site.double.runs == 0


async def test_a_large_value_of_the_plain_route_comes_and_goes_in_a_thread() -> None:
    async with serving() as site:
        value = {"a": [["x", 1.5, None]] * 20_000, "b": "y" * 200_000}
        answer, background_work, turns = await site.post(
            "/v1/predict/echo", json.dumps(value).encode()
        )
        assert (answer.status, background_work) == (200, 2)
        assert json.loads(answer.body) == value
        assert turns > RAN_ON


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_many_embeddings_go_in_a_thread(encoding: str) -> None:
    async with serving() as site:
        body = {"model": "embed", "input": ["a"] * 1000, "encoding_format": encoding}
        answer, background_work, _ = await site.post("/v1/embeddings", json.dumps(body).encode())
        assert (answer.status, background_work) == (200, 1)
        data = json.loads(answer.body)["data"]
        assert [each["index"] for each in data] == [*range(1000)]
        vector = data[-1]["embedding"]
        if encoding == "base64":
            vector = numpy.frombuffer(base64.b64decode(vector), "<f4").tolist()
        assert vector == [float(numpy.float32(0.1))] * 400


async def test_documents_that_come_back_go_in_a_thread() -> None:
    async with serving() as site:
        texts = ["x" * 3000] * 100
        body = {"model": "rank", "query": "q", "documents": texts, "return_documents": True}
        answer, background_work, _ = await site.post("/v1/rerank", json.dumps(body).encode())
        assert (answer.status, background_work) == (200, 2)
        assert len(json.loads(answer.body)["results"]) == 100


async def test_a_long_text_that_generate_gives_goes_in_a_thread() -> None:
    async with serving() as site:
        text = "é" * 300_000
        answer, background_work, _ = await site.post(
            "/v2/models/same/generate", json.dumps({"text_input": text}).encode()
        )
        assert (answer.status, background_work) == (200, 2)
        assert json.loads(answer.body)["text_output"] == text


@pytest.mark.parametrize("is_beside", [False, True])
async def test_more_parameters_than_anybody_has_are_refused_at_once(is_beside: bool) -> None:
    async with serving() as site:
        many = {f"p{number}": 1 for number in range(1025)}
        body = {"text_input": "a", "parameters": many} if is_beside else {"text_input": "a", **many}
        answer, _, _ = await site.post("/v2/models/same/generate", json.dumps(body).encode())
        assert answer.status == 400
        assert b"at most 1024 are allowed" in answer.body


async def test_texts_of_many_rows_become_values_and_arrays_off_the_loop() -> None:
    async with serving() as site:
        texts = ["a", "bc"] * 3000
        body = json.dumps(
            {"inputs": [{"name": "input", "datatype": "BYTES", "shape": [6000], "data": texts}]}
        )
        with calls_here() as calls:
            answer, _, _ = await site.post("/v2/models/same/infer", body.encode())
        assert answer.status == 200
        assert json.loads(answer.body)["outputs"][0]["data"] == texts
        assert not calls["_text"]
        assert not calls["_encoded_text"]


async def test_a_query_of_many_names_is_read_once() -> None:
    query = "&".join(f"p{number}=1" for number in range(3000)) + "&p2999=1"
    async with serving() as site:
        request = Request("POST", "/v1/predict/echo", query, {}, b"1", "id")
        with calls_here() as calls:
            answer = await site.app.handle(request)
        assert answer.status == 400
        assert b"'p2999' is given twice" in answer.body
        assert sum(calls.values()) < 100_000  # of which most are the parser's


async def test_a_small_body_stays_in_the_loop() -> None:
    async with serving() as site:
        for path, body in (
            ("/v2/models/double/infer", infer(b"[1,2]", [1, 2])),
            ("/v1/predict/echo", b"[1,2]"),
        ):
            answer, background_work, _ = await site.post(path, body)
            assert (answer.status, background_work) == (200, 0)


async def test_a_deadline_that_passes_while_the_body_is_read_is_kept() -> None:
    async with serving() as site:
        body = infer(b"[" + b"1," * 1_000_000 + b"1]", [1, 1_000_001])
        for headers in ({"headway_timeout_ms": "1"}, {}):
            sent = body if headers else body[:-1] + b',"parameters":{"timeout":1000}}'
            answer, _, _ = await site.post("/v2/models/double/infer", sent, **headers)
            assert answer.status == 504
        assert site.double.runs == 0
