"""How each kind of request travels, and how its answer is read: digests, or a kind of failure."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

import grpc

from benchmarks.chaos.accounting import BROKEN_OFF
from benchmarks.chaos.http import HungUp, Pool, error_in
from benchmarks.chaos.models import WIDTH
from benchmarks.chaos.scenario import Request
from headway.server.grpc import inference_pb2 as pb

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_WANTS_END = "triton_enable_empty_final_response"


class Failed(Exception):
    """The server said no, or nothing."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Left(Exception):
    """The client went, as planned."""


class Client(Protocol):
    async def ask(self, request: Request) -> list[str]:
        """The digests of its answer. Raises Failed, or Left."""
        ...


# ---- HTTP


class HttpClient:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ask(self, request: Request) -> list[str]:
        connection = await self._pool.take()
        try:
            if request.model == "stories":
                return await self._stream(connection, request)
            connection.send(*_http_message(request))
            async with _leaving(request):
                status, body = await connection.wait_answer()
        except HungUp:
            raise Failed("hung_up", "the server hung up") from None
        except BaseException:
            connection.abort()
            raise
        self._pool.give_back(connection)
        if status != 200:
            raise Failed(http_kind(status, error_in(body)), error_in(body))
        return _http_digests(request, body)

    async def _stream(self, connection: Any, request: Request) -> list[str]:
        text = json.dumps({"text_input": request.content.decode()}).encode()
        connection.send("/v2/models/stories/generate_stream", text)
        if await connection.wait_head() != 200:
            status, body = await connection.wait_answer()
            self._pool.give_back(connection)
            raise Failed(http_kind(status, error_in(body)), error_in(body))
        async with aclosing(_story_events(connection)) as chunks:
            digests = await _read_story(request, chunks)
        self._pool.give_back(connection)
        return digests


async def _story_events(connection: Any) -> AsyncGenerator[str, None]:
    async with aclosing(connection.events()) as events:
        async for event in events:
            said = json.loads(event)
            if "error" in said:
                raise Failed(_stream_kind(said["error"]), said["error"])
            # The event names the model, its version, and its one output.
            yield next(v for k, v in said.items() if not k.startswith("model_") and k != "id")


def _http_message(request: Request) -> tuple[str, bytes]:
    if request.model != "vectors":
        return f"/v1/predict/{request.model}", json.dumps(request.content.decode()).encode()
    rows = len(request.content) // WIDTH
    value = {"name": "x", "datatype": "UINT8", "shape": [rows, WIDTH]}
    value["data"] = list(request.content)
    return "/v2/models/vectors/infer", json.dumps({"inputs": [value]}).encode()


def _http_digests(request: Request, body: bytes) -> list[str]:
    said = json.loads(body)
    if request.model != "vectors":
        return [str(said)]
    return _rows(bytes(said["outputs"][0]["data"]))


# ---- gRPC


class GrpcClient:
    def __init__(self, channel: Any) -> None:
        self._infer = channel.unary_unary(
            _INFER,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        self._stream = channel.stream_stream(
            _STREAM,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )

    async def ask(self, request: Request) -> list[str]:
        message = _grpc_message(request)
        try:
            if request.model == "stories":
                return await self._story(request, message)
            async with _leaving(request):
                response = await self._infer(message)
        except grpc.aio.AioRpcError as error:
            raise Failed(grpc_kind(error), error.details() or "") from None
        return _grpc_digests(request, response)

    async def _story(self, request: Request, message: Any) -> list[str]:
        call = self._stream(iter([message]))
        try:
            async with aclosing(_story_responses(call)) as chunks:
                return await _read_story(request, chunks)
        finally:
            call.cancel()


async def _story_responses(call: Any) -> AsyncGenerator[str, None]:
    async for response in call:
        if response.error_message:
            raise Failed(_stream_kind(response.error_message), response.error_message)
        if response.infer_response.parameters["triton_final_response"].bool_param:
            return
        yield response.infer_response.raw_output_contents[0][4:].decode()
    raise Failed("hung_up", "the stream ended without its end")


def _grpc_message(request: Request) -> Any:
    message = pb.ModelInferRequest(model_name=request.model)
    if request.model == "vectors":
        rows = len(request.content) // WIDTH
        message.inputs.add(name="x", datatype="UINT8", shape=[rows, WIDTH])
        message.raw_input_contents.append(request.content)
        return message
    message.inputs.add(name="input", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(request.content).to_bytes(4, "little") + request.content)
    if request.model == "stories":
        message.parameters[_WANTS_END].bool_param = True
    return message


def _grpc_digests(request: Request, response: Any) -> list[str]:
    content = response.raw_output_contents[0]
    return _rows(content) if request.model == "vectors" else [content[4:].decode()]


# ---- what both need


def _rows(content: bytes) -> list[str]:
    return [content[start : start + 8].hex() for start in range(0, len(content), 8)]


class _leaving:
    """The client goes in the middle, where that is planned."""

    def __init__(self, request: Request) -> None:
        self._timeout = asyncio.timeout(request.leaves_after_s)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise Left from None


async def _read_story(request: Request, chunks: AsyncIterator[str]) -> list[str]:
    """Every chunk of it, in order; each has the digest of the whole."""
    digest, read = "", 0
    if request.leaves_after_chunks == 0:
        raise Left
    try:
        async for chunk in chunks:
            digest, _, number = chunk.partition(":")
            if digest != request.digests[0] or number != str(read):
                return [digest, f"chunk {number} in place of {read}"]
            read += 1
            if read == request.leaves_after_chunks:
                raise Left
    except (Failed, grpc.aio.AioRpcError) as error:
        kind = error.kind if isinstance(error, Failed) else grpc_kind(error)
        if read and kind == "model_failed":
            raise Failed(BROKEN_OFF, str(error)) from None
        raise
    expected = int(request.content.rpartition(b":")[2])
    return [digest] if read == expected else [digest, f"{read} chunks of {expected}"]


class _Sign(NamedTuple):
    kind: str
    text: str


# The wire has one status for several reasons; these are the words of each.
_UNAVAILABLE = (
    _Sign("queue_full", "queue is full"),
    _Sign("queue_full", "pushed out of a full queue"),
    _Sign("queue_full", "callers are in"),
    _Sign("shed", "SLO"),
    _Sign("closed", "stopped before"),
    _Sign("closed", "was cancelled"),
)
_STATUS = {400: "invalid_input", 404: "unknown_model", 422: "poison", 500: "model_failed",
           504: "deadline_exceeded"}  # fmt: skip


def http_kind(status: int, text: str) -> str:
    if status == 503:
        return _unavailable(text)
    return _STATUS.get(status, f"http_{status}")


def grpc_kind(error: Any) -> str:
    text = error.details() or ""
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return _unavailable(text)
        case grpc.StatusCode.INVALID_ARGUMENT if "taken workers down" in text or "lost" in text:
            return "poison"
        case grpc.StatusCode.INTERNAL:
            return "model_failed"
        case code:
            return str(code.name.lower())


def _unavailable(text: str) -> str:
    return next((sign.kind for sign in _UNAVAILABLE if sign.text in text), "not_ready")


def _stream_kind(text: str) -> str:
    """A stream's error has no status of its own."""
    if "taken workers down" in text or "lost twice" in text:
        return "poison"
    overload = next((sign.kind for sign in _UNAVAILABLE if sign.text in text), None)
    return overload or "model_failed"
