"""Folders of sentence-transformers, read whole: what a field says is used, known to be without
effect, or refused by its name.

`modules.json` lists what a text goes through; `config_sentence_transformers.json` has prompts, how
vectors are compared and where they are cut; `sentence_bert_config.json` how long a text may be. A
folder without modules.json is a network whose tokens' mean is taken.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from headway.errors import ConfigError
from headway.files import read_optional_json, why_unreadable
from headway.models.ready.texts.pooling import (
    POOLINGS,
    Array,
    Dense,
    LayerNorm,
    Pooling,
    Step,
    Truncate,
    activation_named,
    identity,
    unit,
)
from headway.models.sources.installed import require

# Older names of the pooling modes, in the order in which they are laid side by side.
_OLDER_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_LENGTHS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_NETWORKS = ("feature-extraction", "sequence-classification")
_TEXT_ONLY = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True, slots=True)
class SentenceFolder:
    """The settings in a folder, beside its network."""

    network: Path  # where that is
    pooling: Pooling | None  # None: there is none
    is_pooled: bool = False  # modules.json says so: it is no head that the network ends with
    has_pooling: bool = False  # a file says how to pool
    includes_prompt: bool = True
    steps: tuple[Step, ...] = ()
    states: int | None = None  # numbers of a token's state, where it says so
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""  # that of every text
    similarity: str = "cosine"
    lowers_case: bool = False
    max_tokens: int | None = None
    activation: str = ""  # of a cross-encoder's logits


def read_sentences(path: Path) -> SentenceFolder:
    """Raises ConfigError, naming what is not served."""
    overall = _overall(path)
    modules = _modules(path)
    network = modules[0].folder if modules else path
    pooled, steps = _Pooled(Pooling()), list[Step]()
    has_pooling = bool(modules) or (path / "1_Pooling" / "config.json").is_file()
    if modules:
        pooled, steps = _behind(modules[1:])
    elif has_pooling:
        pooled = _pooling(path / "1_Pooling")
    if overall["truncate_dim"] is not None:
        steps.append(Truncate(overall["truncate_dim"]))
    lengths = _lengths(network)
    prompts = overall["prompts"]
    return SentenceFolder(
        network=network,
        pooling=pooled.pooling,
        is_pooled=bool(modules) and pooled.pooling is not None,
        has_pooling=has_pooling,
        includes_prompt=pooled.includes_prompt,
        steps=tuple(steps),
        states=pooled.states,
        prompts=prompts,
        prompt=_default_prompt(path, overall, prompts),
        similarity=_similarity(path, overall),
        lowers_case=bool(lengths.get("do_lower_case")),
        max_tokens=lengths.get("max_seq_length"),
        activation=overall.get("activation_fn") or "",
    )


def width_through(steps: Sequence[Step], width: int, path: Path) -> int:
    """The width of a vector after all steps. Raises ConfigError where two steps do not fit."""
    for step in steps:
        if isinstance(step, Truncate):
            width = min(width, step.width)
        elif isinstance(step, Dense | LayerNorm):
            takes = step.weight.shape[-1]
            if takes != width:
                kind = type(step).__name__
                raise ConfigError(f"{path}: {kind} takes {takes} numbers, and is given {width}")
            width = step.weight.shape[0]
    return width


class _Fields:
    """The fields of one file. Each is taken once; `end` refuses those that are left."""

    def __init__(self, file: Path, found: Mapping[str, Any] | None = None) -> None:
        self.file = file
        self._left = dict(read_optional_json(file) if found is None else found)

    def take(self, name: str, default: Any = None, *, kind: type = object) -> Any:
        """The value, which must be of this kind; `default` if it is absent, and None for null."""
        value = self._left.pop(name, default)
        if value is not None and (not isinstance(value, kind) or (kind is int and value is True)):
            raise ConfigError(f"{self.file}: {name} = {json.dumps(value)} is not served")
        return value

    def count(self, name: str) -> int | None:
        """A number of at least 1; None if it is absent or null."""
        value: int | None = self.take(name, kind=int)
        if value is not None and value < 1:
            raise ConfigError(f"{self.file}: {name} = {value} is not served")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Texts by name; a null becomes an empty text."""
        found = {each: text or "" for each, text in (self.take(name, kind=dict) or {}).items()}
        for each, text in found.items():
            if not isinstance(text, str):
                raise ConfigError(f"{self.file}: {name}.{each} = {json.dumps(text)} is not served")
        return found

    def expect(self, name: str, *allowed: Any) -> None:
        """Refuse values other than `allowed`; an absent or null one is fine."""
        value = self._left.pop(name, None)
        if value is not None and value not in allowed:
            raise ConfigError(f"{self.file}: {name} = {json.dumps(value)} is not served")

    def end(self, *harmless: str) -> None:
        for name in self._left.keys() - set(harmless):
            value = json.dumps(self._left[name])
            raise ConfigError(f"{self.file}: {name} = {value} is not served")


# ---- the three files


def _overall(path: Path) -> dict[str, Any]:
    fields = _Fields(path / "config_sentence_transformers.json")
    fields.expect("model_type", "SentenceTransformer", "CrossEncoder")
    fields.expect("keep_in_fp32_modules", [])
    names = ("default_prompt_name", "similarity_fn_name", "activation_fn")
    found = {name: fields.take(name, kind=str) for name in names}
    found["prompts"] = fields.texts("prompts")
    found["truncate_dim"] = fields.count("truncate_dim")
    fields.end("__version__", "requirements")
    return found


def _default_prompt(path: Path, overall: Mapping[str, Any], prompts: Mapping[str, str]) -> str:
    name = overall.get("default_prompt_name")
    if name is not None and name not in prompts:
        file = path / "config_sentence_transformers.json"
        raise ConfigError(f"{file}: default_prompt_name {name!r} is not one of its prompts")
    return prompts.get(name, "") if name else ""


def _similarity(path: Path, overall: Mapping[str, Any]) -> str:
    found = overall.get("similarity_fn_name") or "cosine"
    if found not in SIMILARITIES:
        file = path / "config_sentence_transformers.json"
        raise ConfigError(f"{file}: similarity_fn_name {found!r} is not one of {SIMILARITIES}")
    return str(found)


def _lengths(network: Path) -> dict[str, Any]:
    """The lengths from the first of these files that exists, in sentence-transformers' order."""
    files = [network / name for name in _LENGTHS]
    fields = _Fields(next((file for file in files if file.is_file()), files[0]))
    found = {
        "max_seq_length": fields.count("max_seq_length"),
        "do_lower_case": fields.take("do_lower_case", kind=bool),
    }
    task = fields.take("transformer_task", kind=str) or "feature-extraction"
    if task not in _NETWORKS:
        raise ConfigError(f"{fields.file}: transformer_task = {task!r} is not served")
    output, name = _TEXT_ONLY[task]
    text = {"method": "forward", "method_output_name": output}
    fields.expect("modality_config", {"text": text})
    fields.expect("module_output_name", name)
    for each in ("model", "tokenizer", "processor", "config"):
        fields.expect(f"{each}_args", {})
        fields.expect(f"{each}_kwargs", {})
    for each in ("processing_kwargs", "query_expansion"):
        fields.expect(each, {})
    fields.expect("query_length")
    fields.expect("document_length")
    fields.end("unpad_inputs")  # how it computes, not what
    return found


# ---- the modules


@dataclass(frozen=True, slots=True)
class _Module:
    kind: str
    folder: Path


def _modules(path: Path) -> list[_Module]:
    file = path / "modules.json"
    if not file.is_file():
        return []
    try:
        listed = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if not (isinstance(listed, list) and listed and all(isinstance(each, dict) for each in listed)):
        raise ConfigError(f"{file}: a list of modules is expected")
    modules = [_module(path, each) for each in listed]
    if modules[0].kind != "Transformer":
        raise ConfigError(f"{file}: it begins with {modules[0].kind}, not with a Transformer")
    return modules


def _module(path: Path, entry: Mapping[str, Any]) -> _Module:
    fields = _Fields(path / "modules.json", entry)
    kind, place = str(fields.take("type", "")), str(fields.take("path", ""))
    fields.expect("kwargs", [], {})
    fields.end("idx", "name")
    if not kind.startswith("sentence_transformers."):
        raise ConfigError(f"{fields.file}: {kind} is custom code, which is never run")
    folder = path / place
    if not folder.resolve().is_relative_to(path.resolve()):
        raise ConfigError(f"{fields.file}: {place} is outside of the folder")
    return _Module(kind.rpartition(".")[2], folder)


class _Pooled(NamedTuple):
    pooling: Pooling | None
    includes_prompt: bool = True
    states: int | None = None


def _behind(modules: Sequence[_Module]) -> tuple[_Pooled, list[Step]]:
    """The steps after the network: pooling, then steps over whole vectors."""
    pooled, steps = _Pooled(None), list[Step]()
    for index, module in enumerate(modules):
        if index == 0 and module.kind == "Pooling":
            pooled = _pooling(module.folder)
        elif index and module.kind == "Dense":
            steps.append(_dense(module.folder))
        elif index and module.kind == "LayerNorm":
            steps.append(_layer_norm(module.folder))
        elif index and module.kind == "Normalize":
            _check_normalize(module.folder)
            steps.append(unit)
        elif module.kind != "Dropout":
            raise ConfigError(
                f"{module.folder.parent / 'modules.json'}: {module.kind} at this place is not "
                "served"
            )
    return pooled, steps


def _pooling(folder: Path) -> _Pooled:
    fields = _Fields(folder / "config.json")
    older_width = fields.count("word_embedding_dimension")
    width = fields.count("embedding_dimension") or older_width
    older = tuple(mode for name, mode in _OLDER_MODES.items() if fields.take(name))
    found = fields.take("pooling_mode") or older or ("mean",)
    modes = tuple(found) if isinstance(found, list | tuple) else (found,)
    for mode in modes:
        if not isinstance(mode, str) or mode not in POOLINGS:
            raise ConfigError(f"{fields.file}: pooling_mode {mode!r} is not in {list(POOLINGS)}")
    includes_prompt = bool(fields.take("include_prompt", True))
    fields.end()
    return _Pooled(Pooling(modes), includes_prompt, width)


def _dense(folder: Path) -> Dense:
    fields = _Fields(folder / "config.json")
    takes, gives = fields.take("in_features"), fields.take("out_features")
    name = fields.take("activation_function", "torch.nn.modules.activation.Tanh", kind=str)
    has_bias = fields.take("bias", True)
    fields.expect("module_input_name", "sentence_embedding")
    fields.expect("module_output_name", "sentence_embedding")
    fields.expect("use_residual", False)
    fields.end()
    shapes = {"linear.weight": (gives, takes)}
    tensors = _tensors(folder, {**shapes, "linear.bias": (gives,)} if has_bias else shapes)
    activation = identity if name is None else activation_named(name, str(fields.file))
    return Dense(tensors["linear.weight"], tensors.get("linear.bias"), activation)


def _layer_norm(folder: Path) -> LayerNorm:
    fields = _Fields(folder / "config.json")
    size = fields.take("dimension")
    fields.end()
    tensors = _tensors(folder, {"norm.weight": (size,), "norm.bias": (size,)})
    return LayerNorm(tensors["norm.weight"], tensors["norm.bias"])


def _check_normalize(folder: Path) -> None:
    fields = _Fields(folder / "config.json")
    fields.expect("module_input_name", "sentence_embedding")
    fields.expect("module_output_name", "sentence_embedding")
    fields.end()


def _tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Exactly these tensors, as float32."""
    file = folder / "model.safetensors"
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; pickled weights (*.bin) are not read")
    safetensors = require("safetensors.numpy", "these folders", "torch")
    try:
        found = {
            name: each.astype(numpy.float32) for name, each in safetensors.load_file(file).items()
        }
    except Exception as error:  # its own, of several kinds
        raise ConfigError(why_unreadable(file, error)) from error
    given = {name: array.shape for name, array in found.items()}
    if given != dict(shapes):
        raise ConfigError(f"{file}: it holds {given}; {dict(shapes)} is expected")
    return found
