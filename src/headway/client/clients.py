"""`headway.Client` and `headway.AsyncClient`: calls over HTTP, with types, retries and streams.

`calls` says what each call sends and how its answer is read; the two classes here send and wait.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, Unpack, overload

from headway.client import calls
from headway.client.balancing import Balancer, ChosenServer
from headway.client.calls import (
    Asking,
    ClientAnswer,
    ClientCall,
    EventReader,
    RequestOptions,
    Retries,
)
from headway.errors import ConfigError, DeadlineExceeded, HeadwayError, InvalidInput, Unavailable

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
H = TypeVar("H", bound="httpx.Client | httpx.AsyncClient")
DEFAULT_URL = "http://127.0.0.1:8000"
MOST_BYTES = 2**30  # of a whole answer


class _Caller(Generic[H]):
    """The common part of both clients: the server's address, and options for every call."""

    _sender: ClassVar[str]  # the class of httpx that sends

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
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
        urls = [each.rstrip("/") for each in ([url] if isinstance(url, str) else url)]
        if not urls:
            raise ConfigError("a client needs the address of a server at least", field="url")
        self._urls = urls if len(urls) > 1 else [""]  # or as `http` has it
        self._balancer = Balancer(len(urls))
        self.http: H = http or getattr(_httpx(), self._sender)(base_url=urls[0])

    def _options(self, asking: Asking) -> RequestOptions:
        deadline_ms, priority = asking.get("deadline_ms"), asking.get("priority")
        return RequestOptions(deadline_ms, priority, self._tenant, self._key)

    def _attempts(self, call: ClientCall) -> "_Attempts":
        return _Attempts(call, self._retries, self._timeout_s, self._balancer, self._urls)

    def _stream(self, model: str, value: Any, asking: Asking) -> "tuple[_Attempts, dict[str, Any]]":
        attempts = self._attempts(calls.predict(model, value, Any, asking, self._options(asking)))
        request = attempts.begin(is_stream=True)
        request["headers"]["Accept"] = "text/event-stream"
        return attempts, request

    def _failure(self, error: "httpx.TransportError | TimeoutError") -> HeadwayError:
        """The exception for a request that got no answer."""
        failure: HeadwayError = Unavailable(f"no server answers at {self.http.base_url}: {error}")
        if isinstance(error, (_httpx().TimeoutException, TimeoutError)):
            failure = DeadlineExceeded(f"no answer from {self.http.base_url}")
        failure.__cause__ = error
        return failure


class _Attempts:
    """The attempts of one call, each at a server that the balancer chooses, until it is answered
    or given up."""

    def __init__(
        self,
        call: ClientCall,
        retries: Retries,
        timeout_s: float,
        balancer: Balancer,
        urls: Sequence[str],
    ) -> None:
        self._call = call
        self._retries = retries
        self._balancer = balancer
        self._urls = urls
        deadline_ms = call.options.deadline_ms
        self._whole_s = timeout_s if deadline_ms is None else deadline_ms / 1e3
        self._started = time.monotonic()
        self._count = 0
        self._tried: set[int] = set()
        self._place: ChosenServer | None = None

    def begin(self, *, is_stream: bool = False) -> dict[str, Any]:
        """The arguments for httpx. Raises DeadlineExceeded when it is too late."""
        now = time.monotonic()
        request = self._call.request(self._left_s(now), is_stream=is_stream)
        size = len(request["content"] or b"")
        choose = self._balancer.choose
        self._place = place = choose(
            self._call.model, size, now, tried=self._tried, asks=not is_stream
        )
        request["url"] = self._urls[place.server] + request["url"]
        request["headers"] |= place.headers
        return request

    def end(self, outcome: ClientAnswer | HeadwayError | None) -> float | None:
        """The seconds before the next attempt; None: this was the last, or (`outcome` None) the
        caller left."""
        place, self._place = self._place, None
        if place is None:
            return None
        now = time.monotonic()
        self._balancer.ended(place, outcome, now)
        answer = outcome if isinstance(outcome, ClientAnswer) else None
        if (
            outcome is None
            or isinstance(outcome, DeadlineExceeded)
            or (answer is not None and answer.status == 200)
        ):
            return None
        self._tried.add(place.server)
        elsewhere = self._balancer.has_other(now, self._tried)
        if not elsewhere:
            self._tried.clear()
        wait_s = self._retries.wait_s(self._count, answer, elsewhere=elsewhere)
        self._count += 1
        return wait_s if wait_s is not None and wait_s < self._left_s(now) else None

    def result(self, outcome: ClientAnswer | HeadwayError) -> Any:
        if isinstance(outcome, HeadwayError):
            raise outcome
        if outcome.status != 200:
            raise calls.error_of(outcome)
        with calls.as_expected():
            return self._call.read(outcome)

    def _left_s(self, now: float) -> float:
        left_s = self._whole_s - (now - self._started)
        if left_s <= 0:
            raise DeadlineExceeded(f"no answer within {self._whole_s:g} s")
        return left_s


class Client(_Caller["httpx.Client"]):
    """The models of a server, or of several with the same models (then pass a list of addresses:
    each call goes to one that is expected to answer soon). For code without an event loop; from
    any thread.

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
        attempts, request = self._stream(model, value, asking)
        try:
            with self.http.stream(**request) as answer:
                _check_plain(answer)
                if answer.status_code != 200:
                    outcome = self._read(answer, time.monotonic() + request["timeout"])
                    attempts.end(outcome)
                    raise calls.error_of(outcome)
                reader = EventReader()
                for line in answer.iter_lines():
                    yield from reader.read(line)
        except _httpx().TransportError as error:
            raise self._failure(error) from error
        finally:
            attempts.end(None)

    def models(self) -> list[str]:
        """Names of the models that are served."""
        names: list[str] = self._send(calls.models(self._options({})))
        return names

    def is_ready(self) -> bool:
        """Whether the server is; of several, any."""
        unreached = _httpx().TransportError
        for url in self._urls:
            try:
                with self.http.stream("GET", f"{url}/v2/health/ready") as answer:
                    if answer.status_code == 200:
                        return True
            except unreached as error:
                if len(self._urls) == 1:
                    raise self._failure(error) from error
        return False

    def _send(self, call: ClientCall) -> Any:
        unreached, attempts = _httpx().TransportError, self._attempts(call)
        while True:
            outcome: ClientAnswer | HeadwayError
            request = attempts.begin()
            try:
                end = time.monotonic() + request["timeout"]
                with self.http.stream(**request) as answer:
                    outcome = self._read(answer, end)
            except unreached as error:
                outcome = self._failure(error)
            except BaseException:  # the caller leaves
                attempts.end(None)
                raise
            wait_s = attempts.end(outcome)
            if wait_s is None:
                return attempts.result(outcome)
            time.sleep(wait_s)  # the server's `Retry-After`

    def _read(self, answer: "httpx.Response", end: float) -> ClientAnswer:
        """The whole answer within the call's time; httpx limits each of its reads."""
        _check_plain(answer)
        body = bytearray()
        for part in answer.iter_raw():
            _add(body, part)
            if time.monotonic() > end:
                raise _httpx().ReadTimeout("the answer has no end")
        return _answer_of(answer, body)


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
        attempts, request = self._stream(model, value, asking)
        try:
            async with self.http.stream(**request) as answer:
                _check_plain(answer)
                if answer.status_code != 200:
                    outcome = await self._read(answer)
                    attempts.end(outcome)
                    raise calls.error_of(outcome)
                reader = EventReader()
                async for line in answer.aiter_lines():
                    for chunk in reader.read(line):
                        yield chunk
        except _httpx().TransportError as error:
            raise self._failure(error) from error
        finally:
            attempts.end(None)

    async def models(self) -> list[str]:
        names: list[str] = await self._send(calls.models(self._options({})))
        return names

    async def is_ready(self) -> bool:
        unreached = _httpx().TransportError
        for url in self._urls:
            try:
                async with self.http.stream("GET", f"{url}/v2/health/ready") as answer:
                    if answer.status_code == 200:
                        return True
            except unreached as error:
                if len(self._urls) == 1:
                    raise self._failure(error) from error
        return False

    async def _send(self, call: ClientCall) -> Any:
        unreached, attempts = _httpx().TransportError, self._attempts(call)
        while True:
            outcome: ClientAnswer | HeadwayError
            request = attempts.begin()
            try:
                async with asyncio.timeout(request["timeout"]):
                    async with self.http.stream(**request) as answer:
                        outcome = await self._read(answer)
            except (unreached, TimeoutError) as error:
                outcome = self._failure(error)
            except BaseException:  # the caller leaves
                attempts.end(None)
                raise
            wait_s = attempts.end(outcome)
            if wait_s is None:
                return attempts.result(outcome)
            await asyncio.sleep(wait_s)

    async def _read(self, answer: "httpx.Response") -> ClientAnswer:
        _check_plain(answer)
        body = bytearray()
        async for part in answer.aiter_raw():
            _add(body, part)
        return _answer_of(answer, body)


def _check_plain(answer: "httpx.Response") -> None:
    packed = answer.headers.get("content-encoding", "identity")
    if packed != "identity":
        raise InvalidInput(f"the answer is packed ({packed:.40}), which was not asked for")


def _add(body: bytearray, part: bytes) -> None:
    body += part
    if len(body) > MOST_BYTES:
        raise InvalidInput(f"the answer has more than {MOST_BYTES} bytes")


def _answer_of(response: "httpx.Response", body: bytearray) -> ClientAnswer:
    return ClientAnswer(
        response.status_code,
        bytes(body),
        response.headers.get("content-type", ""),
        response.headers.get("retry-after"),
        response.headers.get("endpoint-load-metrics"),
    )


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("headway.Client needs httpx: pip install 'headway[client]'") from error
    return httpx
