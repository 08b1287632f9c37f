"""`@bentoml.service` classes as a `headway.Model`: one method with `@bentoml.api`.

Callers send an object with the method's arguments, as there. A batchable method takes lists, and
callers send one element each. A generator streams.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

from headway.errors import ConfigError
from headway.model import Model
from headway.single import single

_MARK = "_bentoml_api"


def api(function: Any = None, *, batchable: bool = False, **options: Any) -> Any:
    """Other options are their server's: `headway serve` has its own."""

    def mark(method: Any) -> Any:
        setattr(method, _MARK, "batchable" if batchable else "single")
        return method

    return mark if function is None else mark(function)


def service(kind: Any = None, **options: Any) -> Any:
    if kind is None:
        return _model_of
    return _model_of(kind)


def _model_of(kind: type) -> type[Model[Any, Any]]:
    methods = [each for each in vars(kind).values() if hasattr(each, _MARK)]
    if len(methods) != 1:
        names = ", ".join(each.__name__ for each in methods) or "none"
        raise ConfigError(
            f"{kind.__name__} has {len(methods)} methods with @bentoml.api ({names}); a model has "
            "one: make a class of each"
        )
    (method,) = methods
    is_batchable = getattr(method, _MARK) == "batchable"
    streams = inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)
    made = method if is_batchable else single(_by_arguments(method))
    members = {"stream" if streams else "predict": made, "__module__": kind.__module__}
    return type(kind.__name__, (kind, Model), members)


def _by_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method over one object of its arguments. An only one that is a file, or a record of its
    own, is the value itself."""
    hints = typing.get_type_hints(method, include_extras=True)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    if len(parameters) == 1 and not _is_plain(hints.get(parameters[0].name)):
        return method
    fields = {
        each.name: hints.get(each.name, Any)
        if each.default is each.empty
        else NotRequired[hints.get(each.name, Any)]
        for each in parameters
    }
    make_record: Any = TypedDict
    call = _called_with_keywords(method)
    call.__annotations__ = {
        "given": make_record(method.__name__, fields),
        "return": hints.get("return", Any),
    }
    return call


def _called_with_keywords(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, given: Any) -> Any:
        return method(self, **given)

    def stream(self: Any, given: Any) -> Any:
        yield from method(self, **given)

    async def call_async(self: Any, given: Any) -> Any:
        return await method(self, **given)

    if inspect.isgeneratorfunction(method):
        return stream
    return call_async if inspect.iscoroutinefunction(method) else call


def _is_plain(hint: Any) -> bool:
    """Whether it stands in JSON by its argument's name: anything but a file or a record."""
    is_class = isinstance(hint, type)
    is_record = is_class and (
        hasattr(hint, "__pydantic_fields__") or hasattr(hint, "__dataclass_fields__")
    )
    is_image = is_class and hint.__module__.startswith("PIL.")
    return not (hint is bytes or is_record or is_image)
