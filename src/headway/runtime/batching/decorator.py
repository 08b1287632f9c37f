"""`@headway.batched`: a function over a list becomes one over single values."""

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, overload

from headway.errors import ConfigError
from headway.model import Model, TensorModel
from headway.runtime.batching.batcher import Batcher
from headway.runtime.batching.options import BatcherOptions

In = TypeVar("In")
Out = TypeVar("Out")


class BatchedFunction(Generic[In, Out]):
    """What `@headway.batched` returns.

    `await f(x)` in async code, `f.call(x)` in any thread, `await f.many(xs)` for several. It opens
    itself on first use and may be used from several event loops and threads at once.
    """

    def __init__(self, function: Callable[[list[In]], Any], options: dict[str, Any]) -> None:
        if isinstance(function, int) and not isinstance(function, bool):
            raise ConfigError(
                f"@batched takes options by name: @headway.batched(max_batch_size={function})"
            )
        if not callable(function) or isinstance(function, type | Model | TensorModel):
            raise ConfigError(f"@batched takes a function, not {function!r}: use headway.Batcher")
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        self._attribute: str | None = None  # as a method: its name in its class
        self.batcher: Batcher[In, Out] = Batcher.from_options(
            function, BatcherOptions.of(options), is_floating=True
        )

    async def __call__(self, value: In, **options: Any) -> Out:
        return await self.batcher.submit(value, **options)

    def call(self, value: In, **options: Any) -> Out:
        """Call the function from code without an event loop, in any thread."""
        return self.batcher.call(value, **options)

    async def many(self, values: Iterable[In], **options: Any) -> list[Out]:
        """Call it with several values; results in order. (An item may itself be a list.)"""
        return await self.batcher.many(values, **options)

    async def close(self, *, drain_s: float | None = 30.0) -> None:
        """Answer pending calls and release the worker threads. Optional."""
        await self.batcher.close(drain_s=drain_s)

    def __set_name__(self, owner: type, name: str) -> None:
        if self._attribute not in (None, name):  # each instance has one under this name
            raise TypeError(f"{self._attribute} is batched and cannot be called {name} as well")
        self._attribute = name

    def __get__(self, instance: object, owner: type | None = None) -> "BatchedFunction[In, Out]":
        """Bind a method: each instance has a batcher of its own."""
        if instance is None:
            return self
        method: Any = functools.partial(self.function, instance)  # type: ignore[arg-type]
        bound: BatchedFunction[In, Out] = BatchedFunction(
            method, {"name": self.batcher.name, **self.options}
        )
        if self._attribute is None:
            return bound
        # From now on Python finds this attribute first. `setdefault`: two threads may race.
        return vars(instance).setdefault(self._attribute, bound)  # type: ignore[no-any-return]


@overload
def batched(
    function: Callable[[list[In]], Awaitable[Sequence[Out]]], /
) -> BatchedFunction[In, Out]: ...
@overload
def batched(function: Callable[[list[In]], Sequence[Out]], /) -> BatchedFunction[In, Out]: ...
@overload
def batched(*, max_batch_size: int = 64, **options: Any) -> "_Decorator": ...


def batched(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Batch the calls of a function from a list to a list of the same length.

    Takes the options of `headway.Batcher`; needs none.
    """
    if function is not None:
        return BatchedFunction(function, {})
    return _Decorator(options)


class _Decorator:
    def __init__(self, options: dict[str, Any]) -> None:
        BatcherOptions.of(options)  # a wrong option fails in the line where it is typed
        self._options = options

    @overload
    def __call__(
        self, function: Callable[[list[In]], Awaitable[Sequence[Out]]], /
    ) -> BatchedFunction[In, Out]: ...
    @overload
    def __call__(
        self, function: Callable[[list[In]], Sequence[Out]], /
    ) -> BatchedFunction[In, Out]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        return BatchedFunction(function, self._options)
