"""Unmodified clients behind one face: texts in, vectors out, or what the client says went wrong."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy
import openai
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from real_server import HERE
from served_models import MOST_S
from tritonclient.utils import InferenceServerException

KSERVE_PYTHON = Path(__file__).parents[2] / ".venv-kserve" / "bin" / "python"
Vectors = list[list[float]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. What does not fit has the wrong type for its model."""

    model: str
    texts: Sequence[str]
    timeout_ms: float | None = None
    fits: bool = True

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.timeout_ms is None else {"headway-timeout-ms": str(self.timeout_ms)}


class Refused(Exception):
    """What a client makes of an error: an HTTP status, or the name of a gRPC code."""

    def __init__(self, status: str, message: str, retry_after: str | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.retry_after = retry_after


class Call(Protocol):
    def result(self) -> Vectors:
        """Raises Refused."""
        ...

    def leave(self) -> None:
        """Returns when the client is gone."""
        ...


class Client(Protocol):
    stacks: ClassVar[tuple[str, ...]]
    shows_retry_after: ClassVar[bool]

    def start(self, address: str, asked: Asked) -> Call: ...


HTTP = ("http", "asgi")
GRPC = ("grpc",)


# ---- how calls run


class Background:
    """An event loop in a thread, for clients that are async."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Vectors]) -> "AsyncCall":
        return AsyncCall(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AsyncCall:
    def __init__(self, future: "Future[Vectors]") -> None:
        self._future = future

    def result(self) -> Vectors:
        return self._future.result(MOST_S)

    def leave(self) -> None:
        self._future.cancel()


def refusal_of(error: InferenceServerException) -> Refused:
    found = re.search(r"\d{3}|[A-Z_]+$", str(error.status()))
    return Refused(found[0] if found else "", error.message())


def tensors(module: Any, asked: Asked) -> list[Any]:
    count = len(asked.texts)
    if asked.fits:
        array = numpy.array([text.encode() for text in asked.texts], object)
    else:
        array = numpy.ones(count, numpy.float64)
    made = module.InferInput("input", [count], "BYTES" if asked.fits else "FP64")
    made.set_data_from_numpy(array)
    return [made]


def microseconds(asked: Asked) -> int | None:
    return None if asked.timeout_ms is None else int(asked.timeout_ms * 1000)


def vectors(answer: Any) -> Vectors:
    found: Vectors = answer.as_numpy("embedding").tolist()
    return found


# ---- the clients


class TritonHttpAio(Background):
    stacks = HTTP
    shows_retry_after = False
    module: ClassVar[Any] = tritonclient.http

    def start(self, address: str, asked: Asked) -> Call:  # type: ignore[override]
        return super().start(self._ask(address, asked))

    async def _ask(self, address: str, asked: Asked) -> Vectors:
        given = tensors(self.module, asked)
        async with self.module.aio.InferenceServerClient(address) as client:
            try:
                return vectors(await client.infer(asked.model, given, timeout=microseconds(asked)))
            except InferenceServerException as error:
                raise refusal_of(error) from error


class TritonGrpcAio(TritonHttpAio):
    stacks = GRPC
    module = tritonclient.grpc


class TritonGrpc:
    stacks = GRPC
    shows_retry_after = False

    def start(self, address: str, asked: Asked) -> Call:
        return TritonGrpcCall(address, asked)

    def close(self) -> None:
        pass


class TritonGrpcCall:
    def __init__(self, address: str, asked: Asked) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(address)
        self._told: Future[Any] = Future()
        self._call = self._client.async_infer(
            asked.model,
            tensors(tritonclient.grpc, asked),
            timeout=microseconds(asked),
            callback=lambda result, error: self._told.set_result((result, error)),
        )

    def result(self) -> Vectors:
        result, error = self._told.result(MOST_S)
        self._client.close()
        if error is not None:
            raise refusal_of(error)
        return vectors(result)

    def leave(self) -> None:
        self._call.cancel()
        _, error = self._told.result(MOST_S)
        assert error.status() == "StatusCode.CANCELLED"
        self._client.close()


class OpenAI(Background):
    stacks = HTTP
    shows_retry_after = True

    def start(self, address: str, asked: Asked) -> Call:  # type: ignore[override]
        return super().start(self._ask(address, asked))

    async def _ask(self, address: str, asked: Asked) -> Vectors:
        more = {} if asked.fits else {"dimensions": 0}
        url = f"http://{address}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            try:
                answer = await client.embeddings.create(
                    model=asked.model,
                    input=list(asked.texts),
                    extra_headers=asked.headers,
                    encoding_format="float",
                    **more,  # type: ignore[arg-type]
                )
            except openai.APIStatusError as error:
                retry = error.response.headers.get("retry-after")
                raise Refused(str(error.status_code), error.message, retry) from error
        return [each.embedding for each in answer.data]


class Curl:
    """On the plain route."""

    stacks = HTTP
    shows_retry_after = True

    def start(self, address: str, asked: Asked) -> Call:
        return CurlCall(address, asked)

    def close(self) -> None:
        pass


class CurlCall:
    def __init__(self, address: str, asked: Asked) -> None:
        headers = [f"-H{name}: {value}" for name, value in asked.headers.items()]
        url = f"http://{address}/v1/predict/{asked.model}"
        self._process = subprocess.Popen(
            ["curl", "-sS", "-i", "-H", "Expect:", *headers, "--data-binary", "@-", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        [text] = asked.texts
        self._process.stdin.write(json.dumps(text if asked.fits else 3).encode())
        self._process.stdin.close()
        self._process.stdin = None

    def result(self) -> Vectors:
        said, _ = self._process.communicate(timeout=MOST_S)
        head, _, body = said.decode().partition("\r\n\r\n")
        status = head.split()[1]
        if status == "200":
            return [json.loads(body)]
        retry = re.search(r"(?mi)^retry-after: (\S+)", head)
        raise Refused(status, json.loads(body)["error"], retry and retry[1])

    def leave(self) -> None:
        self._process.kill()
        self._process.communicate()


# ---- clients in processes of their own


class Process:
    """A worker that takes and gives one JSON object a line."""

    def __init__(self, *command: object) -> None:
        self._process = subprocess.Popen(
            [str(each) for each in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._told: dict[int, Future[dict[str, Any]]] = {}
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def ask(self, address: str, asked: Asked, protocol: str) -> int:
        id_ = len(self._told)
        self._told[id_] = Future()
        self._send(
            id=id_,
            url=address,
            protocol=protocol,
            model=asked.model,
            texts=list(asked.texts),
            datatype="BYTES" if asked.fits else "FP64",
            timeout_ms=asked.timeout_ms,
        )
        return id_

    def result(self, id_: int) -> Vectors:
        said = self._told[id_].result(MOST_S)
        assert "broken" not in said, said
        if "status" in said:
            raise Refused(said["status"], said["message"], said["retry"])
        found: Vectors = said["vectors"]
        return found

    def cancel(self, id_: int) -> None:
        self._send(cancel=id_)
        assert self._told[id_].result(MOST_S).get("cancelled")

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._listener.join(MOST_S)
        self._process.wait(MOST_S)
        self._process.stdout.close()

    def _send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(json.JSONDecodeError):  # what its libraries print
                said = json.loads(line)
                self._told[said["id"]].set_result(said)
        for each in self._told.values():
            if not each.done():
                each.set_result({"broken": "its process has ended"})


class ProcessCall:
    def __init__(self, process: Process, id_: int, leave: Callable[[int], None]) -> None:
        self._process = process
        self._id = id_
        self._leave = leave

    def result(self) -> Vectors:
        return self._process.result(self._id)

    def leave(self) -> None:
        self._leave(self._id)


class TritonHttp:
    stacks = HTTP
    shows_retry_after = False

    def __init__(self) -> None:
        self._begin()

    def start(self, address: str, asked: Asked) -> Call:
        return ProcessCall(self._process, self._process.ask(address, asked, "v2"), self._vanish)

    def close(self) -> None:
        self._process.close()

    def _begin(self) -> None:
        self._process = Process(sys.executable, HERE / "triton_worker.py")

    def _vanish(self, _: int) -> None:
        self._process.kill()
        self._begin()


class KserveRest:
    stacks = HTTP
    shows_retry_after = True
    protocol = "v2"

    def __init__(self) -> None:
        self._process = Process(KSERVE_PYTHON, HERE / "kserve_worker.py")

    def start(self, address: str, asked: Asked) -> Call:
        id_ = self._process.ask(address, asked, self.protocol)
        return ProcessCall(self._process, id_, self._process.cancel)

    def close(self) -> None:
        self._process.close()


class KserveGrpc(KserveRest):
    stacks = GRPC
    protocol = "grpc"


CLIENTS: dict[str, Any] = {
    "tritonclient.http": TritonHttp,
    "tritonclient.http.aio": TritonHttpAio,
    "tritonclient.grpc": TritonGrpc,
    "tritonclient.grpc.aio": TritonGrpcAio,
    "openai": OpenAI,
    "curl": Curl,
    "kserve REST": KserveRest,
    "kserve gRPC": KserveGrpc,
}
