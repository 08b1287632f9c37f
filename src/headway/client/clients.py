"""`headway.Client` and `headway.AsyncClient`: calls over HTTP, with types, retries and streams."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from headway.client import calls
from headway.client.calls import Answer, Asking, EventReader, Retries, Wishes
from headway.errors import ConfigError, DeadlineExceeded, HeadwayError, Unavailable

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8000"


class _Settings:
    """What both clients have in common: where the server is, and what every call wants."""

    def __init__(self, *, key: str, tenant: str, timeout_s: float, retries: int) -> None:
        self._key = key
        self._tenant = tenant
        self._timeout_s = timeout_s
        self._retries = Retries(retries)

    def _wishes(self, asking: Asking) -> Wishes:
        deadline_ms, priority = asking.get("deadline_ms"), asking.get("priority")
        return Wishes(deadline_ms, priority, self._tenant, self._key)

    def _left_s(self, started: float, deadline_ms: float | None) -> float:
        """Of the caller's time: the deadline's, or the client's own."""
        whole_s = self._timeout_s if deadline_ms is None else deadline_ms / 1e3
        left_s = whole_s - (time.monotonic() - started)
        if left_s <= 0:
            raise DeadlineExceeded(f"no answer within {whole_s:g} s")
        return left_s


class Client(_Settings):
    """A server's models, called from code without an event loop; from any thread.

    `timeout_s` is for a whole call with its retries; the server is told, and refuses what it
    cannot answer by then. A call that was refused because the server is busy is tried again,
    `retries` times, when the server says (`Retry-After`).
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: str = "",
        tenant: str = "",
        timeout_s: float = 60.0,
        retries: int = 2,
        http: "httpx.Client | None" = None,
    ) -> None:
        super().__init__(key=key, tenant=tenant, timeout_s=timeout_s, retries=retries)
        self.http = http or _httpx().Client(base_url=url.rstrip("/"))

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
        self,
        model: str,
        value: Any,
        *,
        returns: Any = Any,
        **asking: Unpack[Asking],
    ) -> Any:
        """The result for one value, as `returns` says. Raises what the server raised."""
        path = calls.predict_path(model, asking.get("parameters"))
        return calls.result_of(self._post(path, value, self._wishes(asking)), returns)

    @overload
    def predict_many(
        self, model: str, values: Sequence[Any], *, returns: type[T], **asking: Unpack[Asking]
    ) -> list[T]: ...
    @overload
    def predict_many(
        self, model: str, values: Sequence[Any], **asking: Unpack[Asking]
    ) -> list[Any]: ...

    def predict_many(
        self,
        model: str,
        values: Sequence[Any],
        *,
        returns: Any = Any,
        **asking: Unpack[Asking],
    ) -> list[Any]:
        """Several values in one request; results in order. The first error is raised."""
        path = calls.predict_path(model, asking.get("parameters"), is_batch=True)
        answer = self._post(path, {"items": list(values)}, self._wishes(asking))
        return calls.results_of(answer.body, returns)

    def stream(
        self,
        model: str,
        value: Any,
        **asking: Unpack[Asking],
    ) -> Iterator[Any]:
        """The chunks of a model that streams, as they come. Nothing is tried again."""
        headers = self._wishes(asking).headers(of=value)
        path = calls.predict_path(model, asking.get("parameters"))
        with self.http.stream(
            "POST",
            path,
            content=calls.body_of(value),
            headers={**headers, "Accept": "text/event-stream"},
            timeout=self._timeout_s,
        ) as answer:
            if answer.status_code != 200:
                raise calls.error_of(_answer_of(answer, answer.read()))
            reader = EventReader()
            for line in answer.iter_lines():
                yield from reader.read(line)

    def models(self) -> list[str]:
        """Names of the models that are served."""
        answer = self.http.get("/v2/models", headers=self._wishes({}).headers())
        if answer.status_code != 200:
            raise calls.error_of(_answer_of(answer))
        found: list[str] = answer.json()["models"]
        return found

    def is_ready(self) -> bool:
        return bool(self.http.get("/v2/health/ready").status_code == 200)

    def _post(self, path: str, value: Any, wishes: Wishes) -> Answer:
        httpx, started, attempt = _httpx(), time.monotonic(), 0
        body = calls.body_of(value)
        while True:
            left_s = self._left_s(started, wishes.deadline_ms)
            answer, error = None, None
            try:
                headers = wishes.headers(left_s, of=value)
                answer = _answer_of(
                    self.http.post(path, content=body, headers=headers, timeout=left_s)
                )
            except httpx.TimeoutException as late:
                raise DeadlineExceeded(f"no answer from {self.http.base_url}") from late
            except httpx.TransportError as failure:
                error = failure
            if answer is not None and answer.status == 200:
                return answer
            wait_s = self._retries.wait_s(attempt, answer)
            if wait_s is None or wait_s >= self._left_s(started, wishes.deadline_ms):
                raise _given_up(answer, error, str(self.http.base_url))
            _pause(wait_s)
            attempt += 1


class AsyncClient(_Settings):
    """The same for code with an event loop."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: str = "",
        tenant: str = "",
        timeout_s: float = 60.0,
        retries: int = 2,
        http: "httpx.AsyncClient | None" = None,
    ) -> None:
        super().__init__(key=key, tenant=tenant, timeout_s=timeout_s, retries=retries)
        self.http = http or _httpx().AsyncClient(base_url=url.rstrip("/"))

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
        self,
        model: str,
        value: Any,
        *,
        returns: Any = Any,
        **asking: Unpack[Asking],
    ) -> Any:
        path = calls.predict_path(model, asking.get("parameters"))
        return calls.result_of(await self._post(path, value, self._wishes(asking)), returns)

    @overload
    async def predict_many(
        self, model: str, values: Sequence[Any], *, returns: type[T], **asking: Unpack[Asking]
    ) -> list[T]: ...
    @overload
    async def predict_many(
        self, model: str, values: Sequence[Any], **asking: Unpack[Asking]
    ) -> list[Any]: ...

    async def predict_many(
        self,
        model: str,
        values: Sequence[Any],
        *,
        returns: Any = Any,
        **asking: Unpack[Asking],
    ) -> list[Any]:
        path = calls.predict_path(model, asking.get("parameters"), is_batch=True)
        answer = await self._post(path, {"items": list(values)}, self._wishes(asking))
        return calls.results_of(answer.body, returns)

    async def stream(
        self,
        model: str,
        value: Any,
        **asking: Unpack[Asking],
    ) -> AsyncIterator[Any]:
        headers = self._wishes(asking).headers(of=value)
        path = calls.predict_path(model, asking.get("parameters"))
        async with self.http.stream(
            "POST",
            path,
            content=calls.body_of(value),
            headers={**headers, "Accept": "text/event-stream"},
            timeout=self._timeout_s,
        ) as answer:
            if answer.status_code != 200:
                raise calls.error_of(_answer_of(answer, await answer.aread()))
            reader = EventReader()
            async for line in answer.aiter_lines():
                for chunk in reader.read(line):
                    yield chunk

    async def models(self) -> list[str]:
        answer = await self.http.get("/v2/models", headers=self._wishes({}).headers())
        if answer.status_code != 200:
            raise calls.error_of(_answer_of(answer))
        found: list[str] = answer.json()["models"]
        return found

    async def is_ready(self) -> bool:
        return bool((await self.http.get("/v2/health/ready")).status_code == 200)

    async def _post(self, path: str, value: Any, wishes: Wishes) -> Answer:
        httpx, started, attempt = _httpx(), time.monotonic(), 0
        body = calls.body_of(value)
        while True:
            left_s = self._left_s(started, wishes.deadline_ms)
            answer, error = None, None
            try:
                headers = wishes.headers(left_s, of=value)
                answer = _answer_of(
                    await self.http.post(path, content=body, headers=headers, timeout=left_s)
                )
            except httpx.TimeoutException as late:
                raise DeadlineExceeded(f"no answer from {self.http.base_url}") from late
            except httpx.TransportError as failure:
                error = failure
            if answer is not None and answer.status == 200:
                return answer
            wait_s = self._retries.wait_s(attempt, answer)
            if wait_s is None or wait_s >= self._left_s(started, wishes.deadline_ms):
                raise _given_up(answer, error, str(self.http.base_url))
            await asyncio.sleep(wait_s)
            attempt += 1


def _answer_of(response: "httpx.Response", body: bytes | None = None) -> Answer:
    return Answer(
        response.status_code,
        response.content if body is None else body,
        response.headers.get("content-type", ""),
        response.headers.get("retry-after"),
    )


def _given_up(answer: Answer | None, error: Exception | None, url: str) -> HeadwayError:
    if answer is not None:
        return calls.error_of(answer)
    unreached = Unavailable(f"no server answers at {url}: {error}")
    unreached.__cause__ = error
    return unreached


def _pause(seconds: float) -> None:
    """The server said when to come back: nothing else can tell."""
    time.sleep(seconds)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("headway.Client needs httpx: pip install 'headway[client]'") from error
    return httpx
