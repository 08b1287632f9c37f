"""Which runner calls the user's code."""

from typing import Any

from headway.errors import ConfigError
from headway.model import Model, TensorModel, overrides
from headway.runtime.calling.runner import ItemRunner, ModelRunner, TensorRunner, is_async_function
from headway.runtime.calling.whole import WholeRunner


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
        return ItemRunner(target, name=known_as, is_async=is_async_function(target))
    raise ConfigError(f"{target!r} is neither a function nor a headway.Model", field="model")


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
