"""The gRPC methods without a listener, as Ray Serve's proxy calls them: bytes in, bytes out."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from served_models import Double, Letters, Root

import headway
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.mounted import MountedAnswer
from headway.wire.http2.status import Status

Metadata = list[tuple[str, str]]


def tensor_of(model: str, values: list[float]) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id="7")
    request.inputs.add(name="x", datatype="FP32", shape=[1, len(values)])
    request.raw_input_contents.append(numpy.array(values, "float32").tobytes())
    return request


def text_of(text: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="letters")
    request.inputs.add(name="input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
        text.encode()
    )
    return request


async def asked(app: Any, name: str, message: Any, metadata: Metadata) -> MountedAnswer:
    found: MountedAnswer = await app.grpc().answer(
        name, message.SerializeToString(), metadata, "ipv4:127.0.0.1:1"
    )
    return found


async def test_methods_answer_and_errors_are_statuses() -> None:
    app = headway.asgi({"double": Double, "root": Root}, warm_up=False)
    async with app.lifespan():
        live = await asked(app, "ServerLive", pb.ServerLiveRequest(), [])
        assert pb.ServerLiveResponse.FromString(live.message).live
        found = await asked(app, "ModelInfer", tensor_of("double", [1.0] * 16), [])
        assert found.status is Status.OK
        answer = pb.ModelInferResponse.FromString(found.message)
        assert answer.id == "7"
        assert numpy.frombuffer(answer.raw_output_contents[0], "float32").tolist() == [2.0] * 16
        wrong = await asked(app, "ModelInfer", tensor_of("double", [1.0] * 3), [])
        assert (wrong.status, wrong.message) == (Status.INVALID_ARGUMENT, b"")
        nobody = await asked(app, "ModelInfer", tensor_of("nobody", [1.0]), [])
        assert nobody.status is Status.NOT_FOUND
        assert "nobody" in nobody.details
        broken = await app.grpc().answer("ModelInfer", b"\xff\xff\xff", [], "")
        assert broken.status is Status.INTERNAL


async def test_streams_have_many_answers_and_the_last_is_the_end() -> None:
    app = headway.asgi({"letters": Letters}, warm_up=False)

    async def requests() -> AsyncIterator[bytes]:
        yield text_of("abc").SerializeToString()
        yield tensor_of("nobody", [1.0]).SerializeToString()

    async with app.lifespan():
        found = [each async for each in app.grpc().answers("ModelStreamInfer", requests(), [], "")]
    *written, end = found
    assert end == MountedAnswer(b"")
    answers = [pb.ModelStreamInferResponse.FromString(each.message) for each in written]
    pieces = [each.infer_response.outputs for each in answers if not each.error_message]
    assert len(pieces) == 3
    assert [bool(each.error_message) for each in answers].count(True) == 1


@pytest.fixture
def key(tmp_path: Path) -> str:
    made = subprocess.run(
        [
            *(sys.executable, "-m", "headway", "keys", "new", "--tenant", "acme", "--json"),
            *("--file", str(tmp_path / "keys.toml")),
        ],
        capture_output=True,
        check=True,
    )
    return str(json.loads(made.stdout)["key"])


async def test_keys_count_here_too(tmp_path: Path, key: str) -> None:
    shown = [("authorization", f"Bearer {key}")]
    app = headway.asgi({"double": Double}, warm_up=False, keys_file=str(tmp_path / "keys.toml"))
    async with app.lifespan():
        request = tensor_of("double", [1.0] * 16)
        refused = await asked(app, "ModelInfer", request, [])
        assert (refused.status, refused.message) == (Status.UNAUTHENTICATED, b"")
        assert (await asked(app, "ModelInfer", request, shown)).status is Status.OK
        ready = await asked(app, "ServerReady", pb.ServerReadyRequest(), [])
        assert pb.ServerReadyResponse.FromString(ready.message).ready
