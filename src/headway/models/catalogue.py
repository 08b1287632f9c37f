"""Turns a name on the command line into a model: a ready-made one, a class or function of yours, or
a file."""

import functools
import importlib.metadata
import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from headway.errors import ConfigError, nearest
from headway.files import read_optional_json
from headway.model import Model, TensorModel
from headway.models import source_versions, targets
from headway.models.chat.model import LanguageModel, is_language_model
from headway.models.options import typed
from headway.models.sources.entry import Entry, imported
from headway.models.sources.weights import find_weights, is_hub_name

AnyModel: TypeAlias = "Model[Any, Any] | TensorModel | LanguageModel"

ENTRY_POINTS = "headway.models"  # the group in which packages of others name their `Entry`
_log = logging.getLogger(__name__)

DEFAULT = "minilm"
# Of a model on the hub: what is served from its folder, and never a pickle.
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "model.onnx")
CHAT = "chat"  # `headway models get chat` fetches its weights, not pip: so it is no Entry


@functools.cache
def catalogue() -> Mapping[str, Entry]:
    """All models with a name, by the entry points of installed packages. Ours go first.

    A package that fails to import is logged and left out, so that all other models can be used.
    """
    found: dict[str, Entry] = {}
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    for point in sorted(points, key=lambda each: not each.value.startswith("headway.")):
        try:
            entry = point.load()
        except Exception:  # noqa: BLE001  another package's code
            _log.warning("%s: the model cannot be registered", point.value, exc_info=True)
            continue
        if not isinstance(entry, Entry):
            _log.warning("%s is a %s, not an Entry", point.value, type(entry).__name__)
        elif found.setdefault(entry.name, entry) is not entry:
            _log.warning("%s: there is a model %r already", point.value, entry.name)
    return found


def build(
    target: str, options: Mapping[str, Any], edition: source_versions.Edition | None = None
) -> AnyModel:
    """The model for a class, an instance or a function (`module:name`, `file.py:name`, `file.py`),
    a model's file or folder, a name in the catalogue or on the hub; not loaded yet. `edition`: of
    a Python file (`source_versions.py`)."""
    if edition is not None:
        with source_versions.making(edition):
            found = targets.maker_at(target, edition.module, edition.source)
            made = make(found, options, where=target)
            source_versions.note(made, edition)
        return made
    entry = catalogue().get(target)
    if entry is not None:
        entry.check_installed(has_weights="weights" in options)
    return make(maker(target), options, where=target)


def make(maker: Callable[..., AnyModel], options: Mapping[str, Any], *, where: str) -> AnyModel:
    """Call it with options that it takes, of the types that it takes. Raises ConfigError."""
    try:
        inspect.signature(maker).bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"{where} does not take these options: {error}{_takes(maker, options)}", field="options"
        ) from None
    except ValueError:  # a class without a signature: its constructor will say
        pass
    return maker(**typed(maker, options)) if options else maker()


def _takes(maker: Callable[..., AnyModel], options: Mapping[str, Any]) -> str:
    known = [
        name
        for name, each in inspect.signature(maker).parameters.items()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY)
    ]
    unknown = next((name for name in options if name not in known), None)
    maybe = "" if unknown is None else nearest(unknown, known)
    return f"; it takes {', '.join(known) or 'none'}{maybe}"


def maker(target: str) -> Callable[..., AnyModel]:
    """The class, or the function with its options, that makes the model."""
    if target.endswith(".onnx"):
        return _onnx_maker(Path(target))
    if target.endswith(".pt2"):
        return _maker_over(Path(target), "headway.backends.torch:ExportedModel")
    if targets.is_code(target):
        return targets.maker_at(target)
    entry = catalogue().get(target)
    if entry is not None:
        return entry.maker()
    if target == CHAT or target.endswith(".gguf"):
        return functools.partial(LanguageModel, target)
    if Path(target).is_dir():
        return folder_maker(Path(target))
    if is_hub_name(target):
        return folder_maker(find_weights(target, patterns=_HUB_FILES))
    raise _no_model(target)


def _no_model(target: str) -> ConfigError:
    names = sorted([*catalogue(), CHAT])
    if target == DEFAULT:  # its entry point is written down when Headway is installed
        return ConfigError(f"{target}: Headway itself is not installed here: pip install -e .")
    file = f"{target}.py"
    maybe = f"; did you mean {file}?" if Path(file).is_file() else nearest(target, names)
    if target.startswith((".", "/", "~")) or target.endswith("/"):
        return ConfigError(f"there is no file or folder {target}{maybe}")
    return ConfigError(
        f"{target!r} is not a model{maybe or '.'} A model is a file (.py, .onnx, .pt2, .gguf), a "
        "class or function (module:name, file.py:name), a folder, owner/name on the Hugging Face "
        f"hub, or one of {', '.join(names)} (`headway models` describes them)"
    )


def generates(target: str) -> bool:
    """Whether it is a language model. Raises what `maker` raises."""
    found = maker(target)
    return isinstance(found, functools.partial) and found.func is LanguageModel


def is_model_folder(path: Path) -> bool:
    """Whether the folder is one model itself, not a repository of many."""
    return is_saved_model(path) or bool(_programs_in(path))


def is_saved_model(path: Path) -> bool:
    """Whether it is one as transformers or diffusers save it."""
    return any((path / name).is_file() for name in ("config.json", "model_index.json"))


def folder_maker(path: Path) -> Callable[..., AnyModel]:
    """Makes a model from a folder that diffusers or transformers saved, or that contains one .onnx
    or .pt2 file."""
    if (path / "model_index.json").is_file():
        return _maker_over(path, "headway.models.ready.draw:DiffusionModel")
    if _is_whisper(path):
        return _maker_over(path, "headway.models.ready.speech.whisper:Whisper")
    if is_language_model(path):
        return functools.partial(LanguageModel, str(path))
    programs = _programs_in(path)
    is_text = all((path / name).is_file() for name in ("config.json", "tokenizer.json"))
    if is_text or not programs:
        return _maker_over(path, "headway.models.ready.transformers:model_in")
    if len(programs) > 1:
        names = ", ".join(program.name for program in programs)
        raise ConfigError(f"{path} has several models ({names}): say which, or call one model.onnx")
    return maker(str(programs[0]))


def _programs_in(path: Path) -> list[Path]:
    named = [path / name for name in ("model.onnx", "model.pt2") if (path / name).is_file()]
    return named[:1] or sorted([*path.glob("*.onnx"), *path.glob("*.pt2")])


def _maker_over(path: Path, place: str) -> Callable[..., AnyModel]:
    """The class or function at `module:name`, over this file or folder."""
    return functools.partial(imported(place), path)


def _is_whisper(path: Path) -> bool:
    """Whether a transformers folder holds a model of Whisper's family."""
    return read_optional_json(path / "config.json").get("model_type") == "whisper"


def _onnx_maker(path: Path) -> Callable[..., AnyModel]:
    def make(*, device: str = "", threads: int = 1, weights: str | None = None) -> AnyModel:
        """`weights`: a folder, or a name on the hub, where the file is."""
        from headway.backends.onnx import OnnxModel

        file = path
        if weights is not None:
            # Weights above 2 GB are beside the file, under its name with a suffix.
            file = find_weights(weights, patterns=[f"{path.as_posix()}*"]) / path
        return OnnxModel(file, device=device, threads=threads)

    return make
