"""Makes a model, not loaded yet, from a version's folder. Its files determine its kind."""

import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.errors import ConfigError
from headway.hosting.repository.folder import VersionFolder
from headway.hosting.repository.settings import RepositoryModelConfig
from headway.model import Model, TensorModel
from headway.models import catalogue, source_versions
from headway.models.catalogue import AnyModel
from headway.models.targets import SourceLoader, fix_of, run_module

_log = logging.getLogger(__name__)
_TRITONS = "config.pbtxt"

_PICKLES = ("*.pkl", "*.pickle", "*.joblib", "*.pt", "*.pth", "pytorch_model*.bin")


def build_version(name: str, config: RepositoryModelConfig, folder: VersionFolder) -> AnyModel:
    """Raises ConfigError that says what is missing."""
    if folder.error is not None:
        raise ConfigError(folder.error)
    return catalogue.make(_maker(name, config, folder), config.options, where=str(folder.path))


def _maker(
    name: str, config: RepositoryModelConfig, folder: VersionFolder
) -> Callable[..., AnyModel]:
    path = folder.path
    if (path.parent / _TRITONS).is_file():
        _log.warning("%s: %s is not read: settings are in model.toml", name, _TRITONS)
    if config.target:
        return _from_target(config.target)
    if (path / "model.py").is_file():
        return _class_in(path / "model.py", f"headway_models.{name}.v{folder.version}")
    if catalogue.is_model_folder(path):
        return catalogue.folder_maker(path)
    pickles = [file.name for pattern in _PICKLES for file in path.glob(pattern)]
    if pickles:
        raise ConfigError(
            f"{path / pickles[0]}: Headway reads no pickles, because reading one runs its "
            "code; save weights as safetensors, a program with torch.export, or as ONNX"
        )
    raise ConfigError(
        f"{path} has no model: model.py, model.onnx, model.pt2, model_index.json of "
        "diffusers, or config.json with model.safetensors and tokenizer.json is expected, or a "
        "target in model.toml"
    )


def _from_target(target: str) -> Callable[..., AnyModel]:
    if target in catalogue.catalogue() or ":" in target:
        return catalogue.maker(target)
    raise ConfigError(
        f"target: {target!r} is neither a name from `headway models` nor module:Class; "
        "files belong into the version's folder"
    )


# ---- a model.py


def _class_in(path: Path, module_name: str) -> Callable[..., AnyModel]:
    """The model class that the file defines. It may import its neighbours: `from . import x`."""
    module = _module(path, module_name)
    found = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Model | TensorModel)
        and each.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(sorted(each.__name__ for each in found)) or "none"
        raise ConfigError(
            f"{path}: one headway.Model or headway.TensorModel is expected; it defines {names}"
        )
    return found[0]


_loads = 0


def _module(path: Path, module_name: str) -> ModuleType:
    """A new module each time: the running version keeps its own."""
    global _loads  # noqa: PLW0603 - modules are the process's, and so are their names
    _loads += 1
    name = f"{module_name}_{_loads}"
    spec = importlib.util.spec_from_file_location(
        name,
        path,
        loader=SourceLoader(name, str(path)),
        submodule_search_locations=[str(path.parent)],
    )
    try:
        return run_module(spec)
    except ConfigError:
        raise
    except Exception as error:
        message = f"{path}: {type(error).__name__}: {error}{fix_of(error)}"
        raise ConfigError(message) from error


def forget_module(model: Any) -> None:
    """Remove the module of a version that was unloaded."""
    source_versions.forget(model)
    name = type(model).__module__
    if name.startswith("headway_models."):
        # All names first, in one go: other threads import meanwhile.
        for each in list(sys.modules):
            if each == name or each.startswith(name + "."):
                del sys.modules[each]
