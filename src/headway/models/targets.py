"""Turns `module:name`, `path/to/file.py:name` or `file.py` into a function that makes the model.

It imports the user's module and reports what it found; it knows nothing of files of weights.
"""

import copy
import difflib
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from headway.errors import ConfigError
from headway.model import Model, TensorModel
from headway.models import functions, pipelines

_MOST_LISTED = 8
_importing = threading.RLock()  # two models of one file, made in two threads, share its module
_WRITE = (
    "class Mine(headway.Model): def predict(self, items: list[str]) -> list[float], or "
    "def predict(items: list[str]) -> list[float]"
)


def is_code(target: str) -> bool:
    """Whether it names Python code: a file with or without a name in it, or `module:name`."""
    return ":" in target or target.endswith(".py")


def maker_at(target: str, edition: str = "", source: bytes | None = None) -> Callable[..., Any]:
    """The class, the function as a class, or a copy of the instance.

    `edition`: the name of the module, of a file's later edition (`source_versions.py`).
    `source`: what the file was when it was read.
    Raises ConfigError, which lists the names that the module has, and says what to write."""
    place, name = _parted(target)
    module = _module_of(place, target, edition, source)
    if not name and not place.endswith(".py"):
        raise ConfigError(f"{target} does not exist: a name is missing; {_contents(module, place)}")
    if not name:
        name = _only_model(module, place)
    found = getattr(module, name, None)
    made = maker_of(found, f"{place}:{name}")
    if made is not None:
        return made
    nearest = difflib.get_close_matches(name, _offers(module), n=1, cutoff=0.7)
    maybe = f"; did you mean {place}:{nearest[0]}?" if found is None and nearest else ""
    fact = "does not exist" if found is None else _what_it_is(found)
    there = _contents(module, place) if found is None or _offers(module) else ""
    raise ConfigError(f"{place}:{name} {fact}{there and f'; {there}'}{maybe}")


def maker_of(found: object, where: str) -> Callable[..., Any] | None:
    """A function that makes a model of a class, an instance or a function; None: it is none of
    them."""
    if isinstance(found, type):
        return found if issubclass(found, Model | TensorModel) else None
    if isinstance(found, Model | TensorModel):
        return _Copies(found, where)
    if pipelines.is_pipeline(found):
        return pipelines.model_of(cast(Any, found), where)
    if functions.is_function(found):
        return functions.model_of(found, where)
    return None


@dataclass(frozen=True, slots=True)
class _Copies:
    """Makes a model from an instance: each version that is loaded is a copy of it, as it was
    written, so that one that is closed takes nothing from the next."""

    instance: Any
    where: str

    def __call__(self, **options: Any) -> Any:
        if options:
            kind = type(self.instance).__name__
            raise ConfigError(
                f"{self.where} is a finished {kind} and takes no options; write them "
                f"where it is made, or serve the class {kind}",
                field="options",
            )
        return copy.copy(self.instance)


# ---- the module


def _parted(target: str) -> tuple[str, str]:
    """The file and the name of `file.py:Name`. (A Windows path has a colon, too.)"""
    if target.endswith(".py"):
        return target, ""
    place, _, name = target.rpartition(":")
    return place, name


def file_of(target: str) -> Path | None:
    """The file that it names; None: it names something else."""
    place = _parted(target)[0] if is_code(target) else ""
    return Path(place) if place.endswith(".py") else None


def _module_of(place: str, target: str, edition: str, source: bytes | None) -> ModuleType:
    if place.endswith(".py"):
        return _module_in(Path(place), edition, source)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise _broken(place, error) from error  # something that it imports is not there
        file = Path(*place.split(".")).with_suffix(".py")
        raise ConfigError(
            f"{target}: there is no module {error.name!r} in {Path.cwd()} or among the packages; "
            f"to serve a file elsewhere, give its path: headway serve path/to/{file.name}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{target}: {error}") from error
    except (ImportError, SyntaxError) as error:
        raise _broken(place, error) from error


def _module_in(path: Path, edition: str, source: bytes | None) -> ModuleType:
    """The file as a module, as `python file.py` sees the world: its folder is searched first. It
    has its own name where no other module has that, so that worker processes find it, too; an
    edition's name is the edition."""
    if source is None and not path.is_file():
        there = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{path}: there is no such file{there}")
    path = path.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if edition:
            return _import_as(edition, path, source)
        if _is_found_as(path.stem, path, is_read=source is not None):
            if source is None:
                return importlib.import_module(path.stem)
            return _import_as(path.stem, path, source)
        return _import_as(f"headway_file_{path.stem.replace('-', '_')}", path, source)
    except (ImportError, SyntaxError) as error:
        raise _broken(str(path), error) from error


def _is_found_as(name: str, path: Path, *, is_read: bool) -> bool:
    """`is_read`: its source is known, and the file may have gone."""
    if not name.isidentifier():
        return False
    loaded = sys.modules.get(name)
    if loaded is not None:
        return _is_of(loaded, path)
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(name)
    if spec is None:
        return is_read
    return spec.origin is not None and Path(spec.origin).resolve() == path


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def _import_as(name: str, path: Path, source: bytes | None) -> ModuleType:
    with _importing:
        loaded = sys.modules.get(name)
        if loaded is not None and _is_of(loaded, path):
            return loaded
        loader = SourceLoader(name, str(path), source)
        return run_module(importlib.util.spec_from_file_location(name, path, loader=loader))


class SourceLoader(SourceFileLoader):
    """Compiles the source that it is given, or as it is now. A .pyc knows its source's time in
    whole seconds only, so that of two edits within one second the later would not be seen; the
    folder may be read-only."""

    def __init__(self, fullname: str, path: str, source: bytes | None = None) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        source = self.get_data(path) if self._source is None else self._source
        return self.source_to_code(source, path)


def run_module(spec: ModuleSpec | None) -> ModuleType:
    """The module that the specification describes, once its code has run."""
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # type hints are looked up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    return module


def _broken(place: str, error: ImportError | SyntaxError) -> ConfigError:
    """The file is there, but cannot be imported: by its own line, where one is known."""
    if isinstance(error, SyntaxError):
        version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        return ConfigError(
            f"{error.filename}, line {error.lineno}: {error.msg} (this is {version})"
        )
    return ConfigError(f"{place} cannot be imported: {error}{fix_of(error)}")


def fix_of(error: BaseException) -> str:
    """A hint about a missing module; empty for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    if error.name == "triton_python_backend_utils":  # only Triton itself has it
        return "; a model of Triton's becomes a headway.TensorModel: docs/guides/from-triton.md"
    if error.name == "litserve":  # its classes are served without it
        return "; import headway.compat.litserve in its place (docs/guides/from-litserve.md)"
    if error.name == "bentoml":
        return "; a service of BentoML's becomes a headway.Model: docs/guides/from-bentoml.md"
    return f"; pip install {error.name}?"


# ---- what is in it


def _only_model(module: ModuleType, place: str) -> str:
    """The module's only model: a class, a decorated function or an instance; else its only plain
    function."""
    models = _models_in(module)
    names = models or _functions_in(module)
    if len(names) == 1:
        return names[0]
    instances = [name for name in models if not isinstance(getattr(module, name), type)]
    kinds = {type(getattr(module, name)) for name in instances}
    if len(instances) == 1 and all(
        getattr(module, n) in kinds for n in models if n != instances[0]
    ):
        return instances[0]  # and its own class
    if not names:
        raise ConfigError(_contents(module, place))
    raise ConfigError(
        f"{place} has {len(names)} models: say which, as in headway serve {place}:{names[0]}; "
        f"{_contents(module, place)}"
    )


def _contents(module: ModuleType, place: str) -> str:
    names = _offers(module)
    if not names:
        return f"{place} has no model: {_nearly_a_model(module) or f'write {_WRITE}'}"
    listed = [f"{place}:{name} ({_kind(getattr(module, name))})" for name in names]
    more = f" and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
    return f"{place} has {', '.join(listed[:_MOST_LISTED])}{more}"


def _offers(module: ModuleType) -> list[str]:
    return [*_models_in(module), *_functions_in(module)]


def _models_in(module: ModuleType) -> list[str]:
    return [name for name, each in vars(module).items() if _is_own_model(name, each, module)]


def _is_own_model(name: str, each: object, module: ModuleType) -> bool:
    if name.startswith("_"):
        return False
    if isinstance(each, Model | TensorModel):
        return True
    is_class = isinstance(each, type) and issubclass(each, Model | TensorModel)
    is_model = is_class or isinstance(each, functions.Batched)
    return is_model and getattr(each, "__module__", None) == module.__name__


def _functions_in(module: ModuleType) -> list[str]:
    return [
        name
        for name, each in vars(module).items()
        if inspect.isfunction(each)
        and each.__module__ == module.__name__
        and not name.startswith("_")
    ]


def _nearly_a_model(module: ModuleType) -> str:
    """A hint for a class written for another server: what to write instead."""
    for name, each in vars(module).items():
        is_own = isinstance(each, type) and each.__module__ == module.__name__
        if is_own and any(hasattr(each, method) for method in ("predict", "stream")):
            return f"its class {name} is not one; write class {name}(headway.Model)"
    return ""


def _kind(each: object) -> str:
    if isinstance(each, type):
        return "class"
    return "instance" if isinstance(each, Model | TensorModel) else "function"


def _what_it_is(found: object) -> str:
    if isinstance(found, type):
        name = found.__name__
        return f"is not a model: write class {name}(headway.Model), with predict(self, items)"
    return (
        f"is of type {type(found).__name__}, not a class or an instance of headway.Model or "
        "headway.TensorModel, nor a function"
    )
