"""One caller and its answer. A call is answered once, in one place."""

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from headway.core.items import Batch
from headway.errors import ModelFailed

Ran: TypeAlias = tuple[Batch, float]  # a batch that has run, and for how many seconds
_log = logging.getLogger(__name__)


class Answerable(Protocol):
    """A caller, as its batch sees it."""

    value: Any
    ran: tuple[Ran, ...]

    @property
    def is_done(self) -> bool: ...

    def succeed(self, result: Any) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def detach(self) -> None:
        """The batcher leaves the caller's event loop: from now on answers cross threads."""


class Call:
    """One value and the future of its result, for a caller in the batcher's own event loop."""

    # `chain` is set if a model calls: the batches that wait for this one.
    __slots__ = ("chain", "future", "item_ids", "ran", "value")

    def __init__(self, item_id: int, value: Any, future: Any) -> None:
        self.item_ids: tuple[int, ...] = (item_id,)  # one id
        self.value = value
        self.future = future
        self.ran: tuple[Ran, ...] = ()  # once it has run

    @property
    def is_done(self) -> bool:
        return bool(self.future.done())

    def answer(self) -> Awaitable[Any]:
        return self.future  # type: ignore[no-any-return]

    def succeed(self, result: Any) -> None:
        future = self.future
        if not future.done():
            try:  # noqa: SIM105  a `with` would cost more than the answer
                future.set_result(result)
            except RuntimeError:  # its loop is closed: no caller waits any more
                pass

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            with suppress(RuntimeError):  # its loop is closed
                self.future.set_exception(_raisable(error))

    def detach(self) -> None:
        if not isinstance(self.future, _FutureElsewhere):
            self.future = _FutureElsewhere(self.future)


class _FutureElsewhere:
    """A future of another thread's event loop, settled there."""

    __slots__ = ("_future",)

    def __init__(self, future: "asyncio.Future[Any]") -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        return self._future.__await__()

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, result: Any) -> None:
        self._settle(self._future.set_result, result)

    def set_exception(self, error: BaseException) -> None:
        self._settle(self._future.set_exception, error)

    def _settle(self, settle: Callable[[Any], None], outcome: Any) -> None:
        def unless_done() -> None:
            if not self._future.done():
                settle(outcome)

        with suppress(RuntimeError):  # its loop is closed: no caller waits any more
            self._future.get_loop().call_soon_threadsafe(unless_done)


class DirectCall:
    """One value whose caller gets its answer by a plain function call, in the batcher's event loop.

    No future, no task: for front ends that answer thousands of callers from one loop. They derive
    from it; what `answered` and `failed` raise is logged, and goes no further.
    """

    __slots__ = ("is_done", "item_ids", "ran", "tenant", "value")

    def __init__(self, value: Any, tenant: str = "") -> None:
        self.item_ids: tuple[int, ...] = ()  # until it is queued
        self.tenant = tenant
        self.value = value
        self.ran: tuple[Ran, ...] = ()
        self.is_done = False

    def answered(self, result: Any) -> None:
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        raise NotImplementedError

    def succeed(self, result: Any) -> None:
        self._tell(self.answered, result)

    def fail(self, error: BaseException) -> None:
        self._tell(self.failed, error)

    def _tell(self, tell: Callable[[Any], None], outcome: Any) -> None:
        if self.is_done:
            return
        self.is_done = True
        try:
            tell(outcome)
        except BaseException:  # noqa: BLE001  a front end's bug; the next calls are answered all the same
            _log.exception("a caller could not be given its answer")

    def detach(self) -> None:
        raise AssertionError("only a batcher that stays in its loop has direct calls")


class ThreadCall(Call):
    """A call from another event loop: its future may be cancelled at any moment."""

    __slots__ = ()

    def answer(self) -> Awaitable[Any]:
        return asyncio.wrap_future(self.future)

    def succeed(self, result: Any) -> None:
        with suppress(concurrent.futures.InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        with suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(_raisable(error))

    def detach(self) -> None:
        """Nothing to do: its answer crosses threads anyway."""


def _raisable(error: BaseException) -> BaseException:
    """A future cannot hold a StopIteration: it would end the generator that awaits it."""
    if not issubclass(type(error), StopIteration):
        return error
    failure = ModelFailed("the model answered with a StopIteration")
    failure.__cause__ = error
    return failure
