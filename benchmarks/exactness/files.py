"""Ways in which a decoder's folder can hold its weights and its configuration."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

Expected = Literal["exact", "refused"]
Change = Callable[[Path], None]
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_UP = "model.layers.0.mlp.up_proj.weight"
_INV_FREQ = "model.layers.0.self_attn.rotary_emb.inv_freq"


def _config(**changes: Any) -> Change:
    """None: the key is left out."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: each for name, each in config.items() if each != _GONE}))

    return change


_GONE = "left out"


def _tensors(edit: Callable[[dict[str, Any]], Any], file: str = _WEIGHTS) -> Change:
    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / _WEIGHTS)
        edit(tensors)
        kept = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
        save_file(kept, folder / file, metadata={"format": "pt"})

    return change


def _all(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def _sharded(edit: Callable[[dict[str, str]], Any] = lambda names: None) -> Change:
    """Two files and an index of them."""

    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / _WEIGHTS)
        (folder / _WEIGHTS).unlink()
        names, weight_map = sorted(tensors), {}
        for number in range(2):
            file = f"model-{number + 1:05}-of-00002.safetensors"
            part = {name: tensors[name] for name in names[number::2]}
            save_file(part, folder / file, metadata={"format": "pt"})
            weight_map.update(dict.fromkeys(part, file))
        edit(weight_map)
        (folder / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    return change


def _moved(file: str) -> Change:
    def change(folder: Path) -> None:
        (folder / file).rename(folder / _WEIGHTS)

    return change


def _doubled(tensors: dict[str, Any]) -> None:
    for name in tensors:
        tensors[name] = tensors[name] * 2


def _as(kind: str, *names: str) -> Change:
    def edit(tensors: dict[str, Any]) -> None:
        import torch

        for name in names or tuple(tensors):
            tensors[name] = tensors[name].to(getattr(torch, kind))

    return _tensors(edit)


def _with(name: str, like: str = _UP) -> Change:
    return _tensors(lambda tensors: tensors.update({name: tensors[like]}))


def _without(name: str) -> Change:
    return _tensors(lambda tensors: tensors.pop(name))


def _tied(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]


def _packed(tensors: dict[str, Any]) -> None:
    import torch

    tensors[_UP.replace("weight", "qweight")] = torch.ones(4, 48, dtype=torch.int32)
    tensors[_UP.replace("weight", "scales")] = tensors.pop(_UP)[:1]


def _cut(folder: Path) -> None:
    whole = (folder / _WEIGHTS).read_bytes()
    (folder / _WEIGHTS).write_bytes(whole[: len(whole) // 2])


def _broken(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_text("{")

    return change


def _quantised(method: str) -> Change:
    return _config(quantization_config={"quant_method": method, "bits": 4})


_STRAY = _tensors(_doubled, "other.safetensors")
_OLD_ROPE = {"type": "linear", "factor": 2.0}
# What is done to the folder, what must follow, and words that a refusal must have.
CHANGES: dict[str, tuple[Change, Expected, str]] = {
    "a file beside it": (_STRAY, "exact", ""),
    "two files": (_sharded(), "exact", ""),
    "two files and one beside": (_all(_STRAY, _sharded()), "exact", ""),
    "an index of other files": (
        _all(_tensors(_doubled, "kept.safetensors"), _sharded(), _moved("kept.safetensors")),
        "refused",
        "which is it",
    ),
    "an index of a tensor that is not there": (
        _sharded(lambda names: names.update({"more": names[_UP]})),
        "refused",
        "more",
    ),
    "an index without a tensor": (_sharded(lambda names: names.pop(_UP)), "refused", _UP),
    "an index of a file that is not there": (
        _sharded(lambda names: names.update({_UP: "gone.safetensors"})),
        "refused",
        _UP,
    ),
    "an index of a file elsewhere": (
        _sharded(lambda names: names.update({_UP: "../up.safetensors"})),
        "refused",
        "beside",
    ),
    "an index that is cut": (_all(_sharded(), _broken(_INDEX)), "refused", _INDEX),
    "no weights": (lambda folder: (folder / _WEIGHTS).unlink(), "refused", _WEIGHTS),
    "a file that is cut": (_cut, "refused", _WEIGHTS),
    "a tensor missing": (_without(_UP), "refused", _UP),
    "the head missing": (_without("lm_head.weight"), "refused", "lm_head.weight"),
    "a tensor more": (_with("model.layers.0.mlp.more"), "refused", "mlp.more"),
    "a bias more": (_with("model.layers.0.mlp.up_proj.bias"), "refused", "up_proj.bias"),
    "a layer more": (_with(_UP.replace("0", "2")), "refused", "layers.2"),
    "frequencies of an old file": (_with(_INV_FREQ), "exact", ""),
    "a tensor of another shape": (
        _tensors(lambda tensors: tensors.update({_UP: tensors[_UP][:-1]})),
        "refused",
        "up_proj",
    ),
    "the head equal, and tied": (
        _all(_tensors(_tied), _config(tie_word_embeddings=True)),
        "exact",
        "",
    ),
    "the head missing, and tied": (
        _all(_without("lm_head.weight"), _config(tie_word_embeddings=True)),
        "exact",
        "",
    ),
    "the head another, and tied": (_config(tie_word_embeddings=True), "refused", "tie_word"),
    "nothing said of tied": (_config(tie_word_embeddings=_GONE), "exact", ""),
    "bfloat16": (_as("bfloat16"), "exact", ""),
    "float16": (_as("float16"), "exact", ""),
    "float64": (_as("float64"), "exact", ""),
    "one tensor in int8": (_as("int8", _UP), "refused", _UP),
    "one tensor in 8-bit floats": (_as("float8_e4m3fn", _UP), "refused", _UP),
    "int8 and its scales": (
        _all(_as("int8", _UP), _with(_UP + "_scale", "model.norm.weight")),
        "refused",
        "up_proj.weight",
    ),
    "8-bit floats and their scales": (
        _all(_as("float8_e4m3fn", _UP), _with(_UP + "_scale_inv", "model.norm.weight")),
        "refused",
        "fp8",
    ),
    "packed weights, and nothing said": (_tensors(_packed), "refused", "GPTQ"),
    **{
        f"quantised by {method}": (_quantised(method), "refused", method)
        for method in ("gptq", "awq", "bitsandbytes", "compressed-tensors", "fp8", "mxfp4")
    },
    "quantised by MLX": (_config(quantization={"group_size": 64, "bits": 4}), "refused", "MLX"),
    "a rope written as before": (
        _config(rope_parameters=_GONE, rope_theta=10000.0, rope_scaling=_OLD_ROPE),
        "exact",
        "",
    ),
    "a theta written as before": (_config(rope_parameters=_GONE, rope_theta=500.0), "exact", ""),
    "two ropes": (_config(rope_scaling=_OLD_ROPE), "refused", "rope_scaling"),
    "two thetas": (_config(rope_theta=500.0), "refused", "rope_theta"),
    "two rope types": (
        _config(
            rope_parameters={"rope_type": "linear", "type": "default", "factor": 2.0},
            rope_theta=10000.0,
        ),
        "refused",
        "rope type",
    ),
    "a rope without its factor": (
        _config(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0}),
        "refused",
        "factor",
    ),
    "an unknown rope": (
        _config(rope_parameters={"rope_type": "spiral", "rope_theta": 10000.0}),
        "refused",
        "spiral",
    ),
    "an unknown key": (_config(made_by="somebody"), "exact", ""),
    "an unknown kind of layer": (
        _config(layer_types=["full_attention", "convolution"]),
        "refused",
        "convolution",
    ),
    "another vocabulary": (_config(vocab_size=210), "refused", "lm_head"),
    "more layers": (_config(num_hidden_layers=3), "refused", "layers.2"),
    "no hidden_size": (_config(hidden_size=_GONE), "refused", ""),
    "a configuration that is cut": (_broken("config.json"), "refused", "config.json"),
}
