"""Options for a model's constructor, held against its type hints before it is called."""

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headway.config import TypedText
from headway.errors import ConfigError


def typed(maker: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options converted to their type hints (a list for a tuple, a text for a path). Those
    without a hint, or with one that cannot be checked, are passed on. Raises ConfigError that names
    the option."""
    import msgspec  # only where there are options

    hints = _hints(maker, options)
    converted = {}
    for name, value in options.items():
        try:
            converted[name] = _read(value, hints.get(name, Any))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{error}: {value!r}", field=f"options.{name}") from None
        except TypeError:  # a hint of a kind that cannot be checked
            converted[name] = _guessed(value)
    return converted


def _read(value: Any, hint: Any) -> Any:
    """A text from the command line becomes what the hint says: `8` stays a text for a `str`."""
    import msgspec

    if not isinstance(value, TypedText):
        return msgspec.convert(value, hint, dec_hook=_made)
    if hint is Any or hint is object:
        return _guessed(value)
    try:
        return msgspec.convert(str(value), hint, strict=False, dec_hook=_made)
    except msgspec.ValidationError:
        return msgspec.convert(_guessed(value), hint, dec_hook=_made)


def _guessed(value: Any) -> Any:
    """A number, true, false or a list where a text looks like one; else the value itself."""
    if not isinstance(value, TypedText):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return str(value)


def _hints(maker: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    function = maker.__init__ if isinstance(maker, type) else maker  # type: ignore[misc]
    try:
        parameters = inspect.signature(maker).parameters
    except ValueError:  # a class without a signature
        return {}
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    found = {}
    for name in names:
        written = parameters[name].annotation if name in parameters else inspect.Parameter.empty
        if written is inspect.Parameter.empty:
            continue
        try:
            each = typing.get_type_hints(SimpleNamespace(__annotations__={name: written}), scope)
        except (NameError, TypeError):  # a name that only type checkers import
            continue
        found[name] = each[name]
    return found


def _made(kind: Any, value: Any) -> Any:
    """Convert to a type that msgspec does not know; msgspec checks the result."""
    is_path = isinstance(kind, type) and issubclass(kind, Path) and isinstance(value, str)
    return kind(value) if is_path else value
