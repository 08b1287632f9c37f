"""Folders as PEFT saves LoRA adapters: `adapter_config.json` and `adapter_model.safetensors`.

What is not understood is refused by its name: an adapter that is applied in part gives wrong text,
without a visible reason.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.errors import ConfigError
from headway.files import read_json, why_unreadable

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
_MOST_CONFIG_BYTES = 1 << 20
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])(\.default)?\.weight")
# These say how it was trained or where it comes from, or are looked at below. A key that is none of
# them must be empty, for it may change what the adapter computes.
_KNOWN = frozenset(
    [
        *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config"),
        *("ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out"),
        *("inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform"),
        *("lora_alpha", "lora_dropout", "loftq_config", "megatron_core", "peft_type"),
        *("peft_version", "qalora_group_size", "r", "rank_pattern", "revision"),
        *("runtime_config", "target_modules", "task_type", "use_rslora"),
    ]
)
_CHANGE_THE_MODEL = ("pissa", "olora", "corda", "loftq")  # its own weights, at the first step


@dataclass(frozen=True, slots=True)
class LowRank:
    """The matrices added to one module's product: x·downᵀ·upᵀ. The scale is in `up`."""

    down: torch.Tensor  # rank × in, float32
    up: torch.Tensor  # out × rank


Weights = dict[str, LowRank]  # by module
Sizes = Mapping[str, tuple[int, int]]  # in and out, by module


def read_adapter(folder: Path, sizes: Sizes, *, max_rank: int) -> Weights:
    """The adapter, checked against the modules that can be adapted. Raises ConfigError."""
    config = _config(folder)
    halves = _halves(folder)
    weights = {}
    for module, (down, up) in sorted(halves.items()):
        if module not in sizes:
            raise ConfigError(f"{folder}: changes {module}, which this engine cannot")
        rank = down.shape[0]
        found = (down.shape[-1], up.shape[0])
        if down.dim() != 2 or up.dim() != 2 or up.shape[1] != rank or found != sizes[module]:
            raise ConfigError(
                f"{folder}: {module} is {tuple(down.shape)} and {tuple(up.shape)}, for a model "
                f"whose module takes {sizes[module][0]} and gives {sizes[module][1]}"
            )
        _check_rank(folder, config, module, rank, max_rank)
        weights[module] = LowRank(down.float(), up.float() * _scale(config, module, rank))
    return weights


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    config = read_json(path, most_bytes=_MOST_CONFIG_BYTES)
    _check(config, path)
    return config


def _check(config: dict[str, Any], path: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise ConfigError(
            f"{path}: peft_type is {config.get('peft_type')!r}; only LORA is supported"
        )
    if config.get("bias", "none") != "none":
        raise ConfigError(f'{path}: bias = {config["bias"]!r} is not supported; only "none" is')
    initial = config.get("init_lora_weights")
    if isinstance(initial, str) and initial.startswith(_CHANGE_THE_MODEL):
        raise ConfigError(
            f"{path}: init_lora_weights = {initial!r} changes the model itself; save the adapter "
            "as an ordinary one (path_initial_model_for_weight_conversion)"
        )
    for name, value in config.items():
        if name not in _KNOWN and value not in (None, False, [], {}, "", 0):
            raise ConfigError(f"{path}: {name} is not supported")
    _check_numbers(config, path)


def _check_numbers(config: dict[str, Any], path: Path) -> None:
    for name in ("r", "lora_alpha"):
        if not _is_number(config.get(name)) or config[name] <= 0:
            raise ConfigError(f"{path}: {name} must be more than 0, not {config.get(name)!r}")
    for name in ("rank_pattern", "alpha_pattern"):
        pattern = config.get(name) or {}
        if not isinstance(pattern, dict) or not all(map(_is_number, pattern.values())):
            raise ConfigError(f"{path}: {name} must be an object of numbers")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _halves(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    path = folder / TENSORS
    tensors = _tensors(path)
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        parts = _KEY.fullmatch(name)
        if parts is None:
            raise ConfigError(f"{path}: {name} is not supported")
        if not tensor.is_floating_point():
            raise ConfigError(f"{path}: {name} is {tensor.dtype}")
        found.setdefault(parts["module"], {})[parts["half"]] = tensor
    for module, halves in found.items():
        if len(halves) != 2:
            raise ConfigError(f"{path}: {module} has lora_{next(iter(halves))} only")
    if not found:
        raise ConfigError(f"{path}: holds no tensors")
    return {module: (halves["A"], halves["B"]) for module, halves in found.items()}


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise ConfigError(f"{path.parent}: holds no {TENSORS}")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(why_unreadable(path, error)) from error
    return tensors


def _check_rank(
    folder: Path, config: Mapping[str, Any], module: str, rank: int, max_rank: int
) -> None:
    declared = _by_pattern(config.get("rank_pattern"), module, config["r"])
    if rank != declared:
        raise ConfigError(f"{folder}: {module} has rank {rank}; {CONFIG} says {declared}")
    if rank > max_rank:
        raise ConfigError(f"{folder}: its rank is {rank}; max_adapter_rank is {max_rank}")


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    alpha = float(_by_pattern(config.get("alpha_pattern"), module, config["lora_alpha"]))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _by_pattern(patterns: Any, module: str, default: Any) -> Any:
    """Look a module up as PEFT does: by the end of its name, or a regular expression of it."""
    for pattern, value in (patterns or {}).items():
        try:
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return value
        except re.error:
            if module.endswith(pattern):
                return value
    return default
