"""Adapters with random weights, in folders as PEFT saves them; and models with them merged in."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_adapter(
    folder: Path,
    model: PreTrainedModel,
    *,
    seed: int,
    rank: int = 4,
    targets: tuple[str, ...] = ALL,
    ranks: dict[str, int] | None = None,
    **config: Any,
) -> Path:
    """Its weights are large enough to change the text."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        if not name.endswith(targets):
            continue
        # A Linear's is out × in; GPT-2's Conv1D has it the other way round.
        is_linear = hasattr(module, "in_features")
        out, into = module.weight.shape if is_linear else module.weight.shape[::-1]
        own = next((each for key, each in (ranks or {}).items() if name.endswith(key)), rank)
        key = f"base_model.model.{name}"
        tensors[f"{key}.lora_A.weight"] = torch.randn(own, into, generator=generator) * 0.3
        tensors[f"{key}.lora_B.weight"] = torch.randn(out, own, generator=generator) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
        "lora_dropout": 0.1,
        "task_type": "CAUSAL_LM",
        "rank_pattern": ranks or {},
        "modules_to_save": None,
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder


def merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model as if its weights had been trained, written apart from the engine's own code."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    made = copy.deepcopy(model)
    for name, module in made.named_modules():
        down = tensors.get(f"base_model.model.{name}.lora_A.weight")
        if down is None:
            continue
        up = tensors[f"base_model.model.{name}.lora_B.weight"]
        alphas = config.get("alpha_pattern", {}).items()
        alpha = next((each for key, each in alphas if name.endswith(key)), config["lora_alpha"])
        rank = down.shape[0]
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        change = scale * up @ down
        with torch.no_grad():
            module.weight += change if hasattr(module, "in_features") else change.T
    return made


def loaded(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
