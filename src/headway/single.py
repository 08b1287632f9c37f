"""`headway.single`: code that answers one value at a time, as a model that takes batches.

It gains nothing from batches, but everything else: a queue, deadlines, priorities, isolation.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from headway.model import END

_Function = Callable[..., Any]


def single(function: _Function) -> _Function:
    """A function, or the `predict` or `stream` of a model, over one value: a batch runs it for each
    of its values, one after the other. A generator becomes a stream."""
    if inspect.isasyncgenfunction(function):
        made = _async_stream(function)
    elif inspect.isgeneratorfunction(function):
        made = _stream(function)
    elif inspect.iscoroutinefunction(function):
        made = _async_predict(function)
    else:
        made = _predict(function)
    made.is_single = True  # type: ignore[attr-defined]  # so its hints are those of one value
    return made


def _predict(function: _Function) -> _Function:
    @functools.wraps(function)
    def predict(*owner_and_items: Any, **keywords: Any) -> list[Any]:
        *owner, items = owner_and_items
        return [function(*owner, item, **keywords) for item in items]

    return predict


def _async_predict(function: _Function) -> _Function:
    @functools.wraps(function)
    async def predict(*owner_and_items: Any, **keywords: Any) -> list[Any]:
        *owner, items = owner_and_items
        return [await function(*owner, item, **keywords) for item in items]

    return predict


def _stream(function: _Function) -> _Function:
    @functools.wraps(function)
    def stream(*owner_and_items: Any, **keywords: Any) -> Iterator[list[Any]]:
        *owner, items = owner_and_items
        streams = [function(*owner, item, **keywords) for item in items]
        step: list[Any] = []
        while not all(chunk is END for chunk in step) or not step:
            step = [next(each, END) for each in streams]
            yield step

    return stream


def _async_stream(function: _Function) -> _Function:
    @functools.wraps(function)
    async def stream(*owner_and_items: Any, **keywords: Any) -> AsyncIterator[list[Any]]:
        *owner, items = owner_and_items
        streams = [function(*owner, item, **keywords) for item in items]
        step: list[Any] = []
        while not all(chunk is END for chunk in step) or not step:
            step = [await anext(each, END) for each in streams]
            yield step

    return stream
