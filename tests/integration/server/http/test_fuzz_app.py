"""Whatever comes in, the app answers with 2xx, or with 4xx and an `error` that says why."""

import asyncio
import gzip
import json
import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import Config, ModelConfig, ServerConfig
from headway.server.run import make_app, serving
from headway.wire.messages import Request, Response, StreamResponse

MODELS = {"double": "Double", "arithmetic": "Arithmetic", "half": "Half", "upper": "Upper"}
CONFIG = Config(
    server=ServerConfig(max_body_bytes=2**20),
    models=tuple(
        ModelConfig(name=name, target=f"served_models:{kind}", warm_up=False)
        for name, kind in MODELS.items()
    ),
)
LENGTH = "inference-header-content-length"
Handle = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def handle() -> Iterator[Handle]:
    """The app, without a socket."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        registry = runner.run(stack.enter_async_context(serving(CONFIG)))
        app = make_app(registry, CONFIG.server)

        async def answer(request: Request) -> tuple[int, bytes]:
            found = await app.handle(request)
            if isinstance(found, StreamResponse):
                return found.status, b"".join([chunk async for chunk in found.chunks])
            assert isinstance(found, Response)
            return found.status, found.body

        def ask(
            path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST"
        ) -> tuple[int, bytes]:
            return runner.run(answer(Request(method, path, "", headers or {}, body, "id")))

        yield ask
        runner.run(stack.aclose())


@pytest.fixture(autouse=True)
def nothing_is_logged_as_our_fault(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not faults


def check(status: int, body: bytes) -> None:
    if 200 <= status < 300:
        return
    assert 400 <= status < 500, body
    error = json.loads(body)["error"]
    text = error["message"] if isinstance(error, dict) else error
    assert isinstance(text, str)
    assert text


PATHS = st.sampled_from(
    [
        *(f"/v2/models/{name}/infer" for name in MODELS),
        *("/v2/models/upper/generate", "/v2/models/upper/generate_stream"),
        *("/v2/repository/index", "/v2/logging", "/v2/trace/setting"),
        *("/v2/systemsharedmemory/region/r/register", "/v2/cudasharedmemory/region/r/register"),
        *("/v1/embeddings", "/v1/rerank", "/v2/rerank"),
        *(f"/v1/predict/{name}" for name in MODELS),
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 3)
    | st.floats(allow_nan=True)
    | st.text(max_size=5)
    | st.sampled_from(["x", "input", "FP32", "INT64", "BYTES", "FP16", "\ud800", 2**63, -(2**63)])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            *(LENGTH, "content-encoding", "accept-encoding", "headway-timeout-ms"),
            *("headway-priority", "headway-tenant", "content-type"),
        ]
    ),
    st.sampled_from(["0", "1", "17", "gzip", "deflate", "br", "high", "-1", "nan", "9" * 30])
    | st.text(max_size=5),
    max_size=2,
)


@given(path=PATHS, body=st.binary(max_size=200), headers=HEADERS)
def test_any_bytes(handle: Handle, path: str, body: bytes, headers: dict[str, str]) -> None:
    check(*without_deadline(handle, path, body, headers))


@given(path=PATHS, value=JSON, headers=HEADERS)
def test_any_json(handle: Handle, path: str, value: Any, headers: dict[str, str]) -> None:
    check(*without_deadline(handle, path, json.dumps(value).encode(), headers))


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "*"]),
    path=st.text(max_size=30).map(lambda text: "/" + text)
    | st.lists(st.sampled_from(["v1", "v2", "models", "double", "%ff", "..", "", "versions", "1"]))
    .map("/".join)
    .map(lambda text: "/" + text),
)
def test_any_path(handle: Handle, method: str, path: str) -> None:
    check(*handle(path, b"", method=method))


def mutate(draw: st.DrawFn, value: Any) -> Any:
    """Somewhere in `value`, something else."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 4)) == 0:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: mutate(draw, value[key])}
    if isinstance(value, list) and value and draw(st.booleans()):
        index = draw(st.integers(0, len(value) - 1))
        kept = [] if draw(st.integers(0, 4)) == 0 else [mutate(draw, value[index])]
        return [*value[:index], *kept, *value[index + 1 :]]
    return draw(JSON)


GOOD: dict[str, Any] = {
    "double": {
        "id": "a",
        "inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True, "classification": 2}}],
        "parameters": {"priority": 1, "binary_data_output": False},
    },
    "arithmetic": {
        "inputs": [
            {"name": name, "shape": [2, 2], "datatype": "INT64", "data": [[1, 2], [3, 4]]}
            for name in "ab"
        ],
    },
    "upper": {
        "inputs": [{"name": "input", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}],
        "parameters": {"timeout": 0},
    },
}


@st.composite
def almost_good(draw: st.DrawFn) -> tuple[str, Any]:
    model = draw(st.sampled_from(sorted(GOOD)))
    value = GOOD[model]
    for _ in range(draw(st.integers(1, 3))):
        value = mutate(draw, value)
    return model, value


@given(almost_good())
def test_requests_that_are_almost_good(handle: Handle, case: tuple[str, Any]) -> None:
    model, value = case
    status, body = handle(f"/v2/models/{model}/infer", json.dumps(value).encode())
    if status == 504:  # a mutation may well be a deadline of a microsecond
        return
    check(status, body)


@given(
    raw=st.binary(max_size=80),
    size=st.integers(-1, 80) | st.sampled_from([2**31, 2**63, 2**64]),
    shape=st.lists(st.integers(-1, 20) | st.sampled_from([2**31, 2**62]), max_size=4),
    datatype=st.sampled_from(["FP32", "FP16", "BYTES", "INT64", "BOOL", "BF16"]),
    shift=st.sampled_from([0, 0, 0, -1, 1, 1000]),
)
def test_any_binary_tail(
    handle: Handle, raw: bytes, size: int, shape: list[int], datatype: str, shift: int
) -> None:
    for model, name in (("double", "x"), ("upper", "input"), ("half", "x")):
        tensor = {"name": name, "shape": shape, "datatype": datatype}
        tensor["parameters"] = {"binary_data_size": size}
        head = json.dumps({"inputs": [tensor]}).encode()
        headers = {LENGTH: str(max(0, len(head) + shift))}
        check(*handle(f"/v2/models/{model}/infer", head + raw, headers))


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=6), st.data())
def test_texts_with_one_byte_changed(
    handle: Handle, texts: list[bytes], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(struct.pack("<I", len(text)) + text for text in texts))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    tensor = {
        "name": "input",
        "shape": [len(texts)],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(raw)},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + bytes(raw)
    check(*handle("/v2/models/upper/infer", body, {LENGTH: str(len(head))}))


@given(st.data())
def test_compressed_bodies_with_one_byte_changed(handle: Handle, data: st.DataObject) -> None:
    packed = bytearray(gzip.compress(json.dumps(GOOD["double"]).encode(), mtime=0))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(packed[: data.draw(st.integers(1, len(packed)))])
    check(*handle("/v2/models/double/infer", body, {"content-encoding": "gzip"}))


def without_deadline(
    handle: Handle, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, Any]:
    """A made-up deadline may be too short: that 504 is right."""
    status, found = handle(path, body, headers)
    return (200, b"") if status == 504 else (status, found)
