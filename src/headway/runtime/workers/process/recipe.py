"""How another process makes the same model: by importing it, never by being sent its code."""

import importlib
import pickle
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from headway.errors import ConfigError


class Recipe(NamedTuple):
    """`name`: module and qualified name of a class or function; `pickle`: an instance, or a
    callable that makes the model."""

    kind: Literal["name", "instance", "maker"]
    module: str = ""
    qualified_name: str = ""
    pickled: bytes = b""

    @property
    def needs_main(self) -> bool:
        """Is it defined in the running script?"""
        return self.module == "__main__" or b"__main__" in self.pickled


class Importing:
    """Set while a worker process imports the script that defines its model."""

    is_main = False

    def __enter__(self) -> None:
        Importing.is_main = True

    def __exit__(self, *_: object) -> None:
        Importing.is_main = False


def check_main() -> None:
    """Raises ConfigError where a script starts workers while it is imported by one."""
    if Importing.is_main:
        raise ConfigError(
            "this script is imported by its own worker process: start it below "
            '`if __name__ == "__main__":`',
            field="worker",
        )


def recipe_of(model: Any, make: Callable[[], Any] | None = None) -> Recipe:
    """Raises ConfigError for what no other process can import. Before `setup`: what that makes is
    made there, too."""
    if make is not None:
        return Recipe("maker", pickled=_pickled(make, model))
    if isinstance(model, type) or hasattr(model, "__qualname__"):
        return _named(model)
    return Recipe("instance", pickled=_pickled(model, model))


def build_model(recipe: Recipe) -> Any:
    """The model, in its own process; not loaded yet."""
    if recipe.kind == "name":
        found: Any = importlib.import_module(_importable(recipe.module))
        for name in recipe.qualified_name.split("."):
            found = getattr(found, name)
        found = getattr(found, "function", found)  # what @batched has wrapped
        return found() if isinstance(found, type) else found
    made = pickle.loads(recipe.pickled)
    return made() if recipe.kind == "maker" else made


def _named(model: Any) -> Recipe:
    name = model.__qualname__
    if "<" in name:  # <lambda>, <locals>
        raise ConfigError(
            f"{name} cannot be imported by another process: a model for worker 'process' is a "
            "class or function at the top of its module",
            field="worker",
        )
    return Recipe("name", model.__module__, name)


def _importable(module: str) -> str:
    return "__mp_main__" if module == "__main__" else module


def _pickled(value: Any, model: Any) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception as error:
        raise ConfigError(
            f"{type(model).__name__} cannot be made in another process: {error}; hand over its "
            "class, or an instance that can be pickled before load()",
            field="worker",
        ) from error
