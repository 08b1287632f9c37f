"""A model's folder: its configuration and its tensors, as `transformers` saves them; or tensors of
the same shapes drawn at random, for benchmarks."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from headway.engine.architecture import LlamaSpec
from headway.errors import ConfigError
from headway.files import why_unreadable

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")
# Names of tensors that quantised weights have beside them, each with its format.
_QUANTISED = {
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".g_idx": "GPTQ",
    ".scales": "GPTQ, AWQ or MLX",
    ".biases": "MLX",
    ".SCB": "bitsandbytes",
    ".absmax": "bitsandbytes",
    ".quant_map": "bitsandbytes",
    ".weight_scale": "compressed-tensors",
    ".weight_packed": "compressed-tensors",
    ".weight_scale_inv": "fp8",
    ".input_scale": "fp8",
    "_blocks": "mxfp4",
    "_scales": "mxfp4",
}
_TIED = ("lm_head.weight", "embed_tokens.weight")
_UNUSED = ".rotary_emb.inv_freq"  # of old files: computed, not read


class Stored(NamedTuple):
    """A tensor in a file, before it is read."""

    file: Path
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """The tensors that the index names, or those of the only file. Other files are ignored."""
    from safetensors import SafetensorError, safe_open

    found = {}
    for file, wanted in _files(folder).items():
        try:
            with safe_open(file, framework="pt") as tensors:
                held = set(tensors.keys())
                _check_index(file, held, wanted)
                for name in sorted(held):  # the same first complaint at every start
                    each = tensors.get_slice(name)
                    found[name] = Stored(file, each.get_dtype(), tuple(each.get_shape()))
        except (OSError, SafetensorError) as error:
            raise ConfigError(why_unreadable(file, error)) from error
    return found


def _check_index(file: Path, held: set[str], wanted: set[str] | None) -> None:
    if wanted is None:
        return
    for name in sorted(wanted - held):
        raise ConfigError(f"{file}: has no {name}, which {_INDEX} says is there")
    for name in sorted(held - wanted):
        raise ConfigError(f"{file}: holds {name}, which {_INDEX} does not name")


def read_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The same tensors, read one at a time."""
    from safetensors import safe_open

    stored = stored_tensors(folder)
    for file in dict.fromkeys(each.file for each in stored.values()):
        with safe_open(file, framework="pt") as tensors:
            for name, each in stored.items():
                if each.file == file:
                    yield name, tensors.get_tensor(name)


def _files(folder: Path) -> Mapping[Path, set[str] | None]:
    """The files to read, and of each the tensors that the index names; None: all."""
    single, index = folder / _SINGLE, folder / _INDEX
    if not index.exists():
        if not single.exists():
            raise ConfigError(f"{folder}: has neither {_SINGLE} nor {_INDEX}")
        return {single: None}
    try:
        named = json.loads(index.read_bytes())["weight_map"]
        files: defaultdict[Path, set[str]] = defaultdict(set)
        for name, file in named.items():
            files[folder / file].add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} is not an index of tensors: {error!r}") from error
    if single.exists() and single not in files:
        raise ConfigError(f"{folder}: has {_SINGLE}, and {_INDEX} names other files: which is it?")
    outside = [file for file in files if file.parent != folder]
    if outside:
        raise ConfigError(f"{index}: names {outside[0]}, which is not a file beside it")
    return dict(files)


def check_stored(folder: Path, *, ignored: tuple[str, ...]) -> None:
    """Check the weights before another library reads them: it would widen integers and drop their
    scales."""
    for name, each in stored_tensors(folder).items():
        if not name.endswith(ignored):
            _check_kind(folder, name, each)


def _check_kind(folder: Path, name: str, stored: Stored) -> None:
    for ending, method in _QUANTISED.items():
        if name.endswith(ending):
            raise ConfigError(f"{folder}: {name} is of weights quantised by {method}: not computed")
    if stored.dtype not in _DTYPES:
        kind = f"fp8 ({stored.dtype})" if stored.dtype.startswith("F8") else stored.dtype
        raise ConfigError(f"{folder}: {name} is {kind}: quantised weights are not computed")


def read_llama(folder: Path, spec: LlamaSpec) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of one of Llama's kin: exactly those that its architecture asks for."""
    stored = stored_tensors(folder)
    by_name = {_plain(name): each for name, each in stored.items()}
    if len(by_name) < len(stored):
        raise ConfigError(f'{folder}: has a tensor twice, with and without "model." in its name')
    _check(folder, spec, by_name)
    tensors = ((_plain(name), each) for name, each in read_tensors(folder))
    unused = (_UNUSED, "lm_head.weight") if spec.is_tied else _UNUSED
    return ((name, each) for name, each in tensors if not name.endswith(unused))


def _check(folder: Path, spec: LlamaSpec, stored: Mapping[str, Stored]) -> None:
    expected = dict(spec.tensors())
    for name, each in stored.items():
        _check_kind(folder, name, each)
    if spec.is_tied and "lm_head.weight" in stored:
        expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
        _check_tied(folder)
    missing = sorted(expected.keys() - stored.keys())
    if missing:
        raise ConfigError(f"{folder}: {missing[0]} is missing{_more(missing)}")
    for name, each in stored.items():
        if name.endswith(_UNUSED):
            continue
        if name not in expected:
            raise ConfigError(f"{folder}: holds {name}, which this model has no use for")
        if each.shape != expected[name]:
            raise ConfigError(f"{folder}: {name} is {each.shape}, not {expected[name]}")


def _check_tied(folder: Path) -> None:
    """transformers ties them by the configuration; newer ones do not where the two differ."""
    both = {_plain(name): each for name, each in read_tensors(folder) if name.endswith(_TIED)}
    head, embedding = both["lm_head.weight"], both["model.embed_tokens.weight"]
    if not torch.equal(head, embedding):
        raise ConfigError(
            f"{folder}: lm_head.weight differs from the embeddings, and tie_word_embeddings is set"
        )


def _plain(name: str) -> str:
    """The name in a model with a head; one that was saved without has no "model." before it."""
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def _more(names: list[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""


def random_tensors(
    spec: LlamaSpec, *, dtype: torch.dtype, device: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a folder of Llama's kind, drawn at random where they are used: nothing is
    written, read or copied."""
    for name, shape in spec.tensors():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        yield name, tensor.normal_(std=0.02) if len(shape) > 1 else tensor.fill_(1.0)


class LayerWeights(NamedTuple):
    """The weights of one layer. The tensors of one product are one matrix."""

    before: torch.Tensor  # the norms' weights
    qkv: Any  # a tensor; on a GPU perhaps one of 8 bits with its scales
    qkv_bias: torch.Tensor | None
    head_norms: tuple[torch.Tensor, torch.Tensor] | None  # of queries and keys
    out: Any
    out_bias: torch.Tensor | None
    between: torch.Tensor
    gate_up: Any
    down: Any


def take_layer(
    tensors: dict[str, torch.Tensor],
    spec: LlamaSpec,
    layer: int,
    arranged: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> LayerWeights:
    """Taken out of them, so that the originals need not stay in memory. `arranged`: what is rotated
    (queries, keys), in the order in which the device rotates."""

    def take(name: str) -> torch.Tensor:
        return tensors.pop(f"model.layers.{layer}.{name}")

    def qkv(kind: str) -> torch.Tensor:
        query, key, value = (take(f"self_attn.{each}_proj.{kind}") for each in "qkv")
        return torch.cat([arranged(query), arranged(key), value])

    def head_norm(which: str) -> torch.Tensor:
        return arranged(take(f"self_attn.{which}_norm.weight"))

    return LayerWeights(
        before=take("input_layernorm.weight"),
        qkv=qkv("weight"),
        qkv_bias=qkv("bias") if spec.qkv_bias else None,
        head_norms=(head_norm("q"), head_norm("k")) if spec.has_head_norms else None,
        out=take("self_attn.o_proj.weight"),
        out_bias=take("self_attn.o_proj.bias") if spec.out_bias else None,
        between=take("post_attention_layernorm.weight"),
        gate_up=torch.cat([take("mlp.gate_proj.weight"), take("mlp.up_proj.weight")]),
        down=take("mlp.down_proj.weight"),
    )
