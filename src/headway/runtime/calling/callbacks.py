"""The user's functions around a model, off the event loop: `prepare`, `size` and `finish`.

They are user code: an exception fails only its own call.
"""

import asyncio
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from headway.errors import ConfigError, HeadwayError, InvalidInput
from headway.model import Model, overrides
from headway.runtime.calling.callback_thread import CallbackThread, Kind, Many, call_user_code
from headway.runtime.calling.faults import is_error

_LARGEST_SIZE = 2**53  # floats are exact up to here: batch times are computed from sizes


class Callbacks:
    def __init__(
        self,
        model: object,
        name: str,
        *,
        max_waiting: int,
        prepare: Callable[[Any], Any] | None = None,
        size: Callable[[Any], int] | None = None,
        limit_s: float | None = None,
    ) -> None:
        """`prepare` and `size` take the place of the model's own. `limit_s`: a call that
        takes longer is answered with ModelFailed."""
        self.prepare = prepare or own_method(model, "prepare")
        self.size = size or own_method(model, "size")
        self.finish = own_method(model, "finish")
        self._prepare_many = None if prepare else _prepare_many_of(model)
        _check_plain(model, name, prepare=self.prepare, size=self.size)
        _check_bare(model, name)
        self._many_prepared = None if self._prepare_many is None else self._prepare_and_size_many
        # A builtin, such as `len`, always returns, and is too cheap to be run in the thread.
        self._sizes_here = self.prepare is None and inspect.isbuiltin(self.size)
        self._make_front = functools.partial(
            CallbackThread, f"headway-front-{name}", max_waiting, limit_s
        )
        self._front = self._make_front()

    @property
    def is_stuck(self) -> bool:
        """Are new calls refused because too many calls hang?"""
        return self._front.is_stuck

    def start_over(self) -> CallbackThread:
        """Start over in a forked process, which lacks the thread. Returns the old object."""
        old, self._front = self._front, self._make_front()
        return old

    def check_room(self) -> None:
        """Refuse now if `finish` is overloaded. (`prepare` checks for itself.)"""
        if self.finish is not None and self.prepare is None:
            self._front.check_room()

    def stop(self) -> None:
        self._front.stop()

    async def prepared(
        self, value: Any, keywords: Mapping[str, Any], deadline: float | None = None
    ) -> tuple[Any, int]:
        """The item to queue and its size."""
        if self._sizes_here:
            return value, self._checked_size(value)
        if self.prepare is None:
            return value, await self.off_loop(
                "prepare", self._checked_size, value, deadline=deadline
            )
        function: Callable[[Any], Any] = self._prepare_and_size
        if keywords:
            function = functools.partial(function, **keywords)
        many = None if keywords else self._many_prepared
        prepared = await self.off_loop("prepare", function, value, many, deadline=deadline)
        return cast(tuple[Any, int], prepared)

    async def off_loop(
        self,
        kind: Kind,
        function: Callable[[Any], Any],
        value: Any,
        many: Many | None = None,
        *,
        deadline: float | None = None,
    ) -> Any:
        if not getattr(asyncio.get_running_loop(), "is_virtual", False):
            return await self._front.run(kind, function, value, many, deadline=deadline)
        result = call_user_code(kind, function, value)
        if is_error(result):
            raise result
        return result

    def _prepare_and_size(self, value: Any, /, **keywords: Any) -> tuple[Any, int]:
        assert self.prepare is not None
        item = self.prepare(value, **keywords)
        return item, 0 if self.size is None else self._checked_size(item)

    def _prepare_and_size_many(self, values: list[Any]) -> list[tuple[Any, int]]:
        assert self._prepare_many is not None
        items = list(self._prepare_many(values))
        if self.size is None:
            return [(item, 0) for item in items]
        return [(item, self._checked_size(item)) for item in items]

    def _checked_size(self, item: Any) -> int:
        assert self.size is not None
        size = call_user_code("size", self.size, item)
        if type(size) is int and 0 <= size <= _LARGEST_SIZE:
            return size
        if isinstance(size, HeadwayError):
            raise size
        whole = call_user_code("size", operator.index, size)  # numpy's integers are no `int`
        if isinstance(whole, int) and 0 <= whole <= _LARGEST_SIZE:
            return whole
        kind = type(size).__name__
        shown = "a larger one" if isinstance(whole, int) and whole > 0 else _text_of(size, kind)
        raise InvalidInput(
            f"size must be a whole number of at least 0 and at most 2**53, not {shown}"
        )


def _text_of(value: Any, kind: str) -> str:
    text = call_user_code("repr", repr, value)
    return text if isinstance(text, str) else f"a {kind}"


def _check_plain(model: object, name: str, **given: Any) -> None:
    """Raises ConfigError for an `async def` whose result would never be awaited."""
    others = {each: own_method(model, each) for each in ("setup", "load", "finish", "prepare_many")}
    for each, function in {**given, **others}.items():
        called = function if inspect.isroutine(function) else type(function).__call__
        if function is not None and inspect.iscoroutinefunction(called):
            raise ConfigError(
                f"{each} of {name} is `async def`; only predict and stream may be. Write `def "
                f"{each}`: it runs in a thread, where it may wait",
                field=each,
            )


def _check_bare(model: object, name: str) -> None:
    """Raises ConfigError for a `setup` or `load` with arguments: it is called without any."""
    for each in ("setup", "load"):
        method = own_method(model, each)
        if method is None:
            continue
        wanted = next(filter(_is_required, inspect.signature(method).parameters.values()), None)
        if wanted is not None:
            theirs = "; a class of LitServe's runs as it is: import headway.compat.litserve as ls"
            raise ConfigError(
                f"{each} of {name} wants {wanted.name!r}, but is called without arguments: write "
                f"`def {each}(self)`" + (theirs if wanted.name == "device" else ""),
                field=each,
            )


def _is_required(parameter: inspect.Parameter) -> bool:
    is_many = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_many


def own_method(model: object, method: str) -> Any:
    """The model's method, if its author wrote one."""
    return getattr(model, method) if overrides(model, method) else None


def _prepare_many_of(model: object) -> Callable[[list[Any]], Sequence[Any]] | None:
    """The model's `prepare_many`, unless a subclass overrides `prepare`, which it would bypass."""
    for kind in type(model).__mro__:
        if kind is Model or "prepare" in vars(kind) or "prepare_many" in vars(kind):
            has_many = kind is not Model and "prepare_many" in vars(kind)
            return cast(Any, model).prepare_many if has_many else None
    return None
