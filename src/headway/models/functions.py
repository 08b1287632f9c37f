"""A function over a list, served as a model: `headway serve app:predict`.

Decorated with `@headway.batched` or not; its type hints say what clients send and get.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, get_args, get_origin, runtime_checkable

from headway.errors import ConfigError
from headway.model import CANCEL, Model

_EXAMPLE = "def predict(items: list[str]) -> list[float]"


@runtime_checkable
class Batched(Protocol):
    """What `@headway.batched` makes of a function, as far as it matters here."""

    function: Callable[..., Any]
    options: Mapping[str, Any]


def is_function(found: object) -> bool:
    return isinstance(found, Batched) or inspect.isfunction(found)


def model_of(found: Any, target: str) -> type[Model[Any, Any]]:
    """A model class whose `predict` is the function. Raises ConfigError.

    The decorator's `prepare` and `size` become the model's own; its other options are kept as
    `batcher_options`, for whoever makes the batcher. Keyword-only arguments are its parameters.
    """
    function = found.function if isinstance(found, Batched) else found
    options = dict(found.options) if isinstance(found, Batched) else {}
    _check(function, target, has_prepare="prepare" in options)
    methods = {
        name: staticmethod(method)
        for name, method in (("predict", function), *((n, options.pop(n, None)) for n in _METHODS))
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
    if not has_prepare and not _is_list(hints.get(positional[0].name)):
        raise ConfigError(
            f"{target}: the hint of {positional[0].name!r} must say of what it is a list, since "
            f"clients send one item each: {_EXAMPLE}"
        )
    if not _is_list(hints.get("return")):
        raise ConfigError(
            f"{target}: its hint must say what list it returns, one result an item: {_EXAMPLE}"
        )


def _is_list(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple, Sequence) and bool(get_args(hint))
