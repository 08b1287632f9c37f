"""A plain `async def` over served models, served as a model itself: `headway serve headway.toml`.

```python
async def search(query: str, *, embed: ModelHandle, rerank: ModelHandle) -> list[str]: ...
```

Each argument that is hinted as a `headway.ModelHandle` is the model of that name. It runs in the
event loop, one call for each request and many at once: only the models that it calls are batched.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any, get_origin

from headway.errors import ConfigError
from headway.model import CANCEL, Model, ModelHandle

AT_ONCE = 64  # requests in the pipeline; the others are queued
_EXAMPLE = "async def search(query: str, *, embed: headway.ModelHandle) -> list[str]"


def is_pipeline(found: object) -> bool:
    return inspect.isfunction(found) and bool(_handles_of(found))


def model_of(function: Callable[..., Any], where: str) -> type[Model[Any, Any]]:
    """A model class that runs it for one item at a time. Raises ConfigError."""
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"{where} calls models, so it must be `async def`: {_EXAMPLE}")
    handles = _handles_of(function)
    parameters = inspect.signature(function).parameters
    first, *others = parameters.values()
    if first.name in handles or any(_is_positional(each) for each in others):
        raise ConfigError(
            f"{where}: a pipeline takes one value and, after a `*`, the models: {_EXAMPLE}"
        )
    own = [each for each in others if each.name not in handles]

    async def predict(self: Any, items: list[Any], **keywords: Any) -> list[Any]:
        models = {name: self.models[name] for name in handles}
        [item] = items
        return [await function(item, **models, **keywords)]

    _describe(predict, function, first, own)
    return type(
        function.__name__,
        (Model,),
        {
            "predict": predict,
            "uses": handles,
            "rerun": False,
            "batch_parameters": [each.name for each in own if each.name != CANCEL],
            "batcher_options": {"max_batch_size": 1, "workers": AT_ONCE, "max_reruns": 0},
            "__doc__": function.__doc__,
            "__module__": function.__module__,
        },
    )


def _describe(
    predict: Any,
    function: Callable[..., Any],
    first: inspect.Parameter,
    own: list[inspect.Parameter],
) -> None:
    """Give `predict` the function's hints, for a list of one."""
    hints = typing.get_type_hints(function, include_extras=True)
    keywords = {each.name: hints[each.name] for each in own if each.name in hints}
    takes, gives = hints.get(first.name, Any), hints.get("return", Any)
    predict.__annotations__ = {"items": list[takes], "return": list[gives], **keywords}  # type: ignore[valid-type]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    predict.__signature__ = inspect.Signature(
        [inspect.Parameter("self", kind), inspect.Parameter("items", kind), *own]
    )


def _handles_of(function: Any) -> tuple[str, ...]:
    """The arguments that are models, by their hints."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # the code that needs them says what is wrong
        return ()
    return tuple(
        name
        for name, hint in hints.items()
        if name != "return" and (hint is ModelHandle or get_origin(hint) is ModelHandle)
    )


def _is_positional(each: inspect.Parameter) -> bool:
    return each.kind is not each.KEYWORD_ONLY
