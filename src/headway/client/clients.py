"""`headway.Client` and `headway.AsyncClient`: calls over HTTP, with types, retries and streams.

`calls` says what each call sends and how its answer is read; the two classes here send and wait.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, Unpack, overload

from headway.client import calls
from headway.client.calls import (
    Asking,
    Attempts,
    ClientAnswer,
    ClientCall,
    EventReader,
    RequestOptions,
    Retries,
)
from headway.errors import ConfigError, DeadlineExceeded, HeadwayError, Unavailable

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
H = TypeVar("H", bound="httpx.Client | httpx.AsyncClient")
DEFAULT_URL = "http://127.0.0.1:8000"


class _Caller(Generic[H]):
    """The common part of both clients: the server's address, and options for every call."""

    _sender: ClassVar[str]  # the class of httpx that sends

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: str = "",
        tenant: str = "",
        timeout_s: float = 60.0,
        retries: int = 2,
        http: H | None = None,
    ) -> None:
        self._key = key
        self._tenant = tenant
        self._timeout_s = timeout_s
        self._retries = Retries(retries)
        self.http: H = http or getattr(_httpx(), self._sender)(base_url=url.rstrip("/"))

    def _options(self, asking: Asking) -> RequestOptions:
        deadline_ms, priority = asking.get("deadline_ms"), asking.get("priority")
        return RequestOptions(deadline_ms, priority, self._tenant, self._key)

    def _attempts(self, call: ClientCall) -> Attempts:
        return Attempts(call, self._retries, self._timeout_s, time.monotonic())

    def _stream(self, model: str, value: Any, asking: Asking) -> dict[str, Any]:
        call = calls.predict(model, value, Any, asking, self._options(asking))
        request = call.request(self._timeout_s)
        request["headers"]["Accept"] = "text/event-stream"
        return request

    def _failure(self, error: "httpx.TransportError") -> HeadwayError:
        """The exception for a request that got no answer."""
        failure: HeadwayError = Unavailable(f"no server answers at {self.http.base_url}: {error}")
        if isinstance(error, _httpx().TimeoutException):
            failure = DeadlineExceeded(f"no answer from {self.http.base_url}")
        failure.__cause__ = error
        return failure


class Client(_Caller["httpx.Client"]):
    """A server's models, called from code without an event loop; from any thread.

    `timeout_s` is for a whole call with its retries; the server knows it, and refuses what it
    cannot answer by then. A call that was refused because the server is busy is tried again,
    `retries` times, when the server says (`Retry-After`).
    """

    _sender = "Client"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()

    @overload
    def predict(
        self, model: str, value: Any, *, returns: type[T], **asking: Unpack[Asking]
    ) -> T: ...
    @overload
    def predict(self, model: str, value: Any, **asking: Unpack[Asking]) -> Any: ...

    def predict(
        self, model: str, value: Any, *, returns: Any = Any, **asking: Unpack[Asking]
    ) -> Any:
        """The result for one value, as `returns` says. Raises what the server raised."""
        return self._send(calls.predict(model, value, returns, asking, self._options(asking)))

    @overload
    def predict_many(
        self, model: str, values: Sequence[Any], *, returns: type[T], **asking: Unpack[Asking]
    ) -> list[T]: ...
    @overload
    def predict_many(
        self, model: str, values: Sequence[Any], **asking: Unpack[Asking]
    ) -> list[Any]: ...

    def predict_many(
        self, model: str, values: Sequence[Any], *, returns: Any = Any, **asking: Unpack[Asking]
    ) -> list[Any]:
        """Several values in one request; results in order. The first error is raised."""
        options = self._options(asking)
        results: list[Any] = self._send(calls.predict_many(model, values, returns, asking, options))
        return results

    def stream(self, model: str, value: Any, **asking: Unpack[Asking]) -> Iterator[Any]:
        """The chunks of a model that streams, as they come. Nothing is tried again."""
        with self.http.stream(**self._stream(model, value, asking)) as answer:
            if answer.status_code != 200:
                raise calls.error_of(_answer_of(answer, answer.read()))
            reader = EventReader()
            for line in answer.iter_lines():
                yield from reader.read(line)

    def models(self) -> list[str]:
        """Names of the models that are served."""
        names: list[str] = self._send(calls.models(self._options({})))
        return names

    def is_ready(self) -> bool:
        return bool(self.http.get("/v2/health/ready").status_code == 200)

    def _send(self, call: ClientCall) -> Any:
        unreached, attempts = _httpx().TransportError, self._attempts(call)
        while True:
            outcome: ClientAnswer | HeadwayError
            try:
                outcome = _answer_of(self.http.request(**attempts.request(time.monotonic())))
            except unreached as error:
                outcome = self._failure(error)
            wait_s = attempts.wait_s(outcome, time.monotonic())
            if wait_s is None:
                return attempts.result(outcome)
            _pause(wait_s)


class AsyncClient(_Caller["httpx.AsyncClient"]):
    """The same for code with an event loop."""

    _sender = "AsyncClient"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.http.aclose()

    @overload
    async def predict(
        self, model: str, value: Any, *, returns: type[T], **asking: Unpack[Asking]
    ) -> T: ...
    @overload
    async def predict(self, model: str, value: Any, **asking: Unpack[Asking]) -> Any: ...

    async def predict(
        self, model: str, value: Any, *, returns: Any = Any, **asking: Unpack[Asking]
    ) -> Any:
        return await self._send(calls.predict(model, value, returns, asking, self._options(asking)))

    @overload
    async def predict_many(
        self, model: str, values: Sequence[Any], *, returns: type[T], **asking: Unpack[Asking]
    ) -> list[T]: ...
    @overload
    async def predict_many(
        self, model: str, values: Sequence[Any], **asking: Unpack[Asking]
    ) -> list[Any]: ...

    async def predict_many(
        self, model: str, values: Sequence[Any], *, returns: Any = Any, **asking: Unpack[Asking]
    ) -> list[Any]:
        options = self._options(asking)
        results: list[Any] = await self._send(
            calls.predict_many(model, values, returns, asking, options)
        )
        return results

    async def stream(self, model: str, value: Any, **asking: Unpack[Asking]) -> AsyncIterator[Any]:
        async with self.http.stream(**self._stream(model, value, asking)) as answer:
            if answer.status_code != 200:
                raise calls.error_of(_answer_of(answer, await answer.aread()))
            reader = EventReader()
            async for line in answer.aiter_lines():
                for chunk in reader.read(line):
                    yield chunk

    async def models(self) -> list[str]:
        names: list[str] = await self._send(calls.models(self._options({})))
        return names

    async def is_ready(self) -> bool:
        return bool((await self.http.get("/v2/health/ready")).status_code == 200)

    async def _send(self, call: ClientCall) -> Any:
        unreached, attempts = _httpx().TransportError, self._attempts(call)
        while True:
            outcome: ClientAnswer | HeadwayError
            try:
                outcome = _answer_of(await self.http.request(**attempts.request(time.monotonic())))
            except unreached as error:
                outcome = self._failure(error)
            wait_s = attempts.wait_s(outcome, time.monotonic())
            if wait_s is None:
                return attempts.result(outcome)
            await asyncio.sleep(wait_s)


def _answer_of(response: "httpx.Response", body: bytes | None = None) -> ClientAnswer:
    return ClientAnswer(
        response.status_code,
        response.content if body is None else body,
        response.headers.get("content-type", ""),
        response.headers.get("retry-after"),
    )


def _pause(seconds: float) -> None:
    """The server's `Retry-After`."""
    time.sleep(seconds)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("headway.Client needs httpx: pip install 'headway[client]'") from error
    return httpx
