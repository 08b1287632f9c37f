"""The parameters of a model: keyword-only arguments of its own methods, found by name.

`prepare` gets what its caller gave. `predict` and `stream` see a whole batch, so theirs must be one
value for all of it: the model lists them in `batch_parameters`, and they become part of the
partition. What no method takes is refused by name. Types are none of our business here.
"""

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from headway.errors import ConfigError, InvalidInput
from headway.model import CANCEL, Model, TensorModel, overrides

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Keywords:
    """The keyword-only arguments of one function."""

    defaults: Mapping[str, Any]  # by name
    takes_others: bool  # it has `**others`

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # a builtin that does not say
            return cls({}, takes_others=False)
        return cls(
            {
                each.name: each.default
                for each in parameters
                if each.kind is each.KEYWORD_ONLY and each.name != CANCEL
            },
            any(each.kind is each.VAR_KEYWORD for each in parameters),
        )

    def take(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given arguments that the function takes. Raises InvalidInput if one is missing."""
        for name, default in self.defaults.items():
            if default is REQUIRED and name not in given:
                raise InvalidInput(f"parameter {name!r} is missing")
        if self.takes_others:
            return dict(given)
        return {name: value for name, value in given.items() if name in self.defaults}


class BatchParameters(NamedTuple):
    """The parameters of a whole batch; hashable, to be part of the partition."""

    values: tuple[tuple[str, Any], ...]
    kinds: tuple[type, ...]  # 1, 1.0 and True are equal, but not the same to a model


class Parameters:
    def __init__(
        self, model: "Model[Any, Any] | TensorModel", prepare: Callable[..., Any] | None
    ) -> None:
        self._batch_names = _batch_names(model)
        self._methods = {
            method: Keywords.of(getattr(type(model), method))
            for method in ("predict", "stream")
            if overrides(model, method)
        }
        self._prepare = Keywords.of(prepare) if prepare else Keywords({}, takes_others=False)
        self._defaults = dict(self._prepare.defaults)
        for keywords in self._methods.values():
            self._defaults |= keywords.defaults
        self._check(type(model).__name__)

    def __bool__(self) -> bool:
        """Does the model take any?"""
        everywhere = (self._prepare, *self._methods.values())
        return any(each.defaults or each.takes_others for each in everywhere)

    def takes(self, name: str) -> bool:
        return (
            name in self._batch_names or name in self._prepare.defaults
        ) or self._prepare.takes_others

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidInput for a parameter that no method takes."""
        for name in given:
            if not self.takes(name):
                known = ", ".join(sorted({*self._batch_names, *self._prepare.defaults}))
                raise InvalidInput(f"parameter {name!r} is unknown; the model takes {known}")

    def of_item(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords for `prepare`."""
        return self._prepare.take(given)

    def of_batch(self, given: Mapping[str, Any]) -> BatchParameters:
        """A call that leaves one out shares a batch with calls that give its default."""
        values = []
        for name in self._batch_names:
            value = given.get(name, self._defaults.get(name))
            if value is REQUIRED:
                raise InvalidInput(f"parameter {name!r} is missing")
            values.append((name, value))
        return BatchParameters(tuple(values), tuple(type(value) for _, value in values))

    def keywords(self, method: str, shared: BatchParameters) -> dict[str, Any]:
        """The keywords for `predict` or `stream` of a batch."""
        return self._methods[method].take(dict(shared.values))

    def _check(self, model: str) -> None:
        for method, keywords in self._methods.items():
            for name in keywords.defaults.keys() - set(self._batch_names):
                raise ConfigError(
                    f"{model}.{method} takes {name!r}, but a batch has many callers: add it to "
                    "batch_parameters, so that only calls with the same value share a batch; or "
                    "take it in prepare",
                    field="model",
                )
        everywhere = (self._prepare, *self._methods.values())
        for name in self._batch_names:
            if not any(name in each.defaults or each.takes_others for each in everywhere):
                raise ConfigError(
                    f"{model} lists {name!r} in batch_parameters, but no method takes it as a "
                    f"keyword: write def predict(self, batch, *, {name}=…), after the *",
                    field="model",
                )


def _batch_names(model: "Model[Any, Any] | TensorModel") -> tuple[str, ...]:
    names = model.batch_parameters
    if isinstance(names, str):
        raise ConfigError(
            f"batch_parameters is a list of names, not {names!r}: write [{names!r}]", field="model"
        )
    return tuple(names)


class BatchKey(NamedTuple):
    """The partition of items that need more than `predict(items)`: a stream, or keywords."""

    partition: Hashable
    streams: bool
    parameters: BatchParameters | None
