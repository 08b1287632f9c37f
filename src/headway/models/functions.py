"""A function over a list, served as a model: `headway serve app:predict`.

Decorated with `@headway.batched` or not; its type hints say what clients send and get, without them
any JSON.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, get_args, get_origin, runtime_checkable

from headway.errors import ConfigError
from headway.model import CANCEL, Model

_EXAMPLE = "def predict(items: list[str]) -> list[float]"


@runtime_checkable
class Batched(Protocol):
    """The part of a function decorated by `@headway.batched` that is used here."""

    function: Callable[..., Any]
    options: Mapping[str, Any]


def is_function(found: object) -> bool:
    return isinstance(found, Batched) or inspect.isfunction(found)


def model_of(found: Any, target: str) -> type[Model[Any, Any]]:
    """A model class whose `predict` is the function. Raises ConfigError.

    The decorator's `prepare` and `size` become the model's own; its other options are kept as
    `batcher_options`, for the code that makes the batcher. Keyword-only arguments are its
    parameters.
    """
    function = found.function if isinstance(found, Batched) else found
    options = dict(found.options) if isinstance(found, Batched) else {}
    _check(function, target, has_prepare="prepare" in options)
    streams = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    main = "stream" if streams else "predict"
    methods = {
        name: staticmethod(method)
        for name, method in ((main, function), *((n, options.pop(n, None)) for n in _METHODS))
        if method is not None
    }
    keywords = inspect.signature(function).parameters.values()
    return type(
        function.__name__,
        (Model,),
        {
            **methods,
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "batcher_options": options,
            "batch_parameters": [
                each.name
                for each in keywords
                if each.kind is each.KEYWORD_ONLY and each.name != CANCEL
            ],
        },
    )


_METHODS = ("prepare", "size")


def _check(function: Callable[..., Any], target: str, *, has_prepare: bool) -> None:
    positional = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) != 1:
        raise ConfigError(
            f"{target} takes {len(positional)} arguments; a function that is served takes one, "
            f"the list of a batch's items: {_EXAMPLE}"
        )
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{target}: bad type hint: {error}") from error
    if getattr(function, "is_single", False):
        return  # its hints are those of one value
    first, returned = hints.get(positional[0].name), hints.get("return")
    if first is not None and not has_prepare and not _is_batch(first):
        raise ConfigError(
            f"{target}: {positional[0].name!r} is the list of a batch's items, since clients send "
            f"one item each; its hint says {_spelled(first)}. Write "
            f"`{positional[0].name}: list[{_spelled(first)}]`, or decorate it with @headway.single"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return  # each of its steps is a list
    if "return" in hints and not _is_batch(returned):
        raise ConfigError(
            f"{target} returns one result for each item of its batch; its hint says "
            f"{_spelled(returned)}. Write `-> list[{_spelled(returned)}]`"
        )


def _is_batch(hint: Any) -> bool:
    """Whether the hint is a list, an array of rows, or unknown."""
    kind = get_origin(hint) or hint
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    is_array = isinstance(kind, type) and kind.__name__ in ("ndarray", "Tensor")
    return hint in (Any, object) or kind in (list, tuple, Sequence, Iterable) or is_array


def _spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
