"""A stream of a hosted model: opened with its first chunk, recorded at its end."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from headway.hosting.registry import Ask
from headway.runtime.driving.streams import OpenStream

if TYPE_CHECKING:
    from headway.hosting.generation.served import ServedGenerator
    from headway.hosting.hosted import Served


class ServedStream:
    """An async iterator; front ends without a task attach to it instead, once it has begun."""

    def __init__(self, host: "Served | ServedGenerator", value: Any, ask: Ask) -> None:
        self._host = host
        self._asked = (value, ask)
        self._chunks: OpenStream | None = None  # before it begins
        self._is_over = False
        self._started = 0.0
        self._held: AbstractContextManager[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._is_over:
            raise StopAsyncIteration
        try:
            if self._chunks is None:
                self._chunks = await self._open()
            return await anext(self._chunks)
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise

    async def _open(self) -> OpenStream:
        self._started = self._host.clock()
        self._held = self._host.held()
        self._held.__enter__()
        return await self._host.open_stream(*self._asked)

    @property
    def source(self) -> Any:
        """See OpenStream; after the first chunk."""
        assert self._chunks is not None, "it has not begun"
        return self._chunks.source

    def attach(self, reader: Callable[[], None] | None) -> None:
        """See OpenStream; after the first chunk."""
        assert self._chunks is not None, "it has not begun"
        self._chunks.attach(reader)

    def is_at_end(self) -> bool:
        """Raises what went wrong."""
        if self._is_over or self._chunks is None:
            return True
        try:
            is_at_end = self._chunks.is_at_end()
        except BaseException as error:
            self._end(error)
            raise
        if is_at_end:
            self._end(None)
        return is_at_end

    async def aclose(self) -> None:
        if self._held is not None:
            self._end(GeneratorExit())

    def _end(self, error: BaseException | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._chunks is not None:
            self._chunks.close()
        if self._held is not None:
            self._host.record(1, self._started, error)
            self._held.__exit__(None, None, None)
