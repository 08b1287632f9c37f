"""The hints of a model's methods: what callers give it and get, and its parameters."""

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, get_args, get_origin

import msgspec

from headway.errors import ConfigError, InvalidInput
from headway.model import End, Model, TensorModel, overrides
from headway.signature.hints import (
    alternatives,
    first_argument,
    is_batch,
    is_nothing,
    is_sequence,
    known,
    spelled,
    tensor_in,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterHints:
    """The types of a model's parameters: keyword-only arguments of its methods."""

    hints: Mapping[str, Any]

    @classmethod
    def of(cls, model: "Model[Any, Any] | TensorModel") -> "ParameterHints":
        hints: dict[str, Any] = {}
        for method in ("prepare", "predict", "stream"):
            if overrides(model, method):
                hints |= _keyword_hints(model, method)
        return cls(hints)

    def convert(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers may come as text, as in a URL. What has no hint stays as it is."""
        converted = dict(given)
        for name in given.keys() & self.hints.keys():
            try:
                converted[name] = msgspec.convert(given[name], self.hints[name], strict=False)
            except (msgspec.ValidationError, TypeError, OverflowError) as error:
                raise InvalidInput(f"parameter {name!r}: {error}") from error
        return converted


def input_hint(model: Model[Any, Any]) -> Any:
    """The type that one caller sends; None if it is unknown. Raises ConfigError."""
    if overrides(model, "prepare"):
        return _parameter(model, "prepare")
    method = "predict" if overrides(model, "predict") else "stream"
    batch = _parameter(model, method)
    if _is_single(model, method):
        return batch
    if not is_batch(batch):
        raise ConfigError(
            f"{type(model).__name__}.{method} takes the list of a batch's items; its hint says "
            f"{spelled(batch)}. Write `items: list[{spelled(batch)}]`"
        )
    found = _element(batch)
    return _type_argument(model, 0) if found is None else found


def output_hint(model: Model[Any, Any]) -> Any:
    """The type that one caller gets, or of a stream's chunks; None: unknown. Raises ConfigError."""
    if overrides(model, "finish"):
        return known(_hints(model, "finish").get("return"))
    if not overrides(model, "predict"):
        return _chunk_hint(model)
    batch = _hints(model, "predict").get("return")
    if _is_single(model, "predict"):
        return known(batch)
    if batch is not None and not is_batch(batch):
        raise ConfigError(
            f"{type(model).__name__}.predict returns one result for each item of its batch; its "
            f"hint says {spelled(batch)}. Write `-> list[{spelled(batch)}]`"
        )
    found = _element(batch)
    return _type_argument(model, 1) if found is None else found


def _chunk_hint(model: Model[Any, Any]) -> Any:
    steps = _hints(model, "stream").get("return")
    if _is_single(model, "stream"):
        return first_argument(steps)
    chunk = _element(first_argument(steps))
    chunks = [each for each in alternatives(chunk) if not is_nothing(each) and each is not End]
    return chunks[0] if len(chunks) == 1 else _type_argument(model, 1)


def _is_single(model: Model[Any, Any], method: str) -> bool:
    """Whether `headway.single` has made it: then its hints are those of one value."""
    return getattr(getattr(type(model), method), "is_single", False)


def _hints(model: "Model[Any, Any] | TensorModel", method: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(getattr(type(model), method), include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{type(model).__name__}.{method}: bad type hint: {error}") from error


def _keyword_hints(model: "Model[Any, Any] | TensorModel", method: str) -> dict[str, Any]:
    """The hints of keyword parameters only: those of arrays may be names that only type checkers
    import."""
    function = inspect.unwrap(getattr(type(model), method))
    written = {
        each.name: each.annotation
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.annotation is not each.empty
    }
    names = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(SimpleNamespace(__annotations__=written), names)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{type(model).__name__}.{method}: bad type hint: {error}") from error


def _parameter(model: Model[Any, Any], method: str) -> Any:
    """The hint of its first argument; keywords are parameters, not values."""
    parameters = inspect.signature(getattr(model, method)).parameters.values()
    first = next((each.name for each in parameters if each.kind is not each.KEYWORD_ONLY), "")
    return known(_hints(model, method).get(first))


def _type_argument(model: Model[Any, Any], index: int) -> Any:
    """The In or Out of `class Mine(headway.Model[In, Out])`."""
    for kind in type(model).__mro__:
        for base in getattr(kind, "__orig_bases__", ()):
            if get_origin(base) is Model:
                return known(get_args(base)[index])
    return None


def _element(hint: Any) -> Any:
    """The element type of a batch. An annotated array consists of rows already."""
    if tensor_in(hint) is not None:
        return hint
    return first_argument(hint) if is_sequence(hint) else None
