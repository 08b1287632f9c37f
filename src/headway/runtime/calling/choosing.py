"""Which runner calls the user's code."""

from collections.abc import Callable
from typing import Any

from headway.errors import ConfigError
from headway.model import Model, TensorModel, overrides
from headway.runtime.calling.parameters import REQUIRED, Keywords
from headway.runtime.calling.runner import (
    ItemRunner,
    ModelRunner,
    TensorRunner,
    WholeRunner,
    is_async_function,
)


def runner_for(target: object, name: str | None) -> ModelRunner:
    """The runner for the user's function or model."""
    known_as = name or str(getattr(target, "__name__", type(target).__name__))
    if isinstance(target, TensorModel):
        kind = TensorRunner if target.batch_axis else WholeRunner
        return kind(target, name=known_as)
    if isinstance(target, Model):
        is_async = _model_is_async(target, known_as)
        return ItemRunner(
            target.predict,
            name=known_as,
            is_async=is_async,
            may_rerun=target.rerun,
            writes_inputs=target.writes_inputs,
        )
    if callable(target):
        if callable(getattr(target, "function", None)) and hasattr(target, "batcher"):
            raise ConfigError(f"{known_as} is batched already: call it as it is", field="model")
        return ItemRunner(target, name=known_as, is_async=is_async_function(target))
    raise ConfigError(f"{target!r} is neither a function nor a headway.Model", field="model")


def check_callable(function: Callable[..., Any], name: str) -> None:
    """Raises ConfigError for a function that no call could reach. For its start: a server makes the
    keywords of a decorated function parameters, which its clients give."""
    for keyword, default in Keywords.of(function).defaults.items():
        if default is REQUIRED:
            raise ConfigError(
                f"{name} cannot be called without {keyword!r}, which no caller of a function can "
                f"give: write a default, or a headway.Model with batch_parameters = [{keyword!r}]",
                field="model",
            )


def _model_is_async(model: Model[Any, Any], name: str) -> bool:
    """Is the model async? Both methods must agree, because they share workers."""
    written = [method for method in ("predict", "stream") if overrides(model, method)]
    kinds = {is_async_function(getattr(model, method)) for method in written}
    if len(kinds) > 1:
        raise ConfigError(
            f"predict and stream of {name} must both be `def` (they run in a worker thread) or "
            "both be `async def` (they run in the event loop)",
            field="model",
        )
    return kinds == {True}
