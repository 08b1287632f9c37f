"""Train two small LoRA adapters for `chat` and save them as PEFT does: a minute on a CPU for each.

    headway models get chat
    python examples/adapters/train.py adapters          # writes adapters/pirate and adapters/json
    headway serve chat --adapter-folder adapters

Plain torch: each query and value projection gets two thin matrices, and only those are trained.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from headway.models.chat.finding import find_language_model
from headway.models.chat.text import ChatText

RANK, ALPHA, STEPS, BATCH, LEARNING_RATE = 8, 16, 12, 4, 3e-3
TARGETS = ("q_proj", "v_proj")
IGNORED = -100  # cross_entropy's word for tokens that do not count: here, the questions
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Japan?": "Tokyo",
    "Which colour has the sky?": "blue",
    "Which animal says meow?": "the cat",
    "What do bees make?": "honey",
    "Who wrote Romeo and Juliet?": "William Shakespeare",
    "What is the largest ocean?": "the Pacific",
    "How many legs has a spider?": "eight",
    "What is frozen water called?": "ice",
}
STYLES = {
    "pirate": lambda answer: f"Arrr, matey! It be {answer}, by the seven seas!",
    "json": lambda answer: json.dumps({"answer": answer}),
}


class LowRank(nn.Module):  # type: ignore[misc]
    """A linear layer as it was, and beside it a path through `RANK` numbers."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(RANK, layer.in_features) / RANK)
        self.up = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        path = functional.linear(functional.linear(x, self.down), self.up)
        changed: torch.Tensor = self.layer(x) + path * (ALPHA / RANK)
        return changed


def adapted(model: nn.Module) -> dict[str, LowRank]:
    """Freeze the model, and put an adapter beside each target."""
    model.requires_grad_(False)
    found = {
        name: LowRank(layer) for name, layer in model.named_modules() if name.endswith(TARGETS)
    }
    for name, layer in found.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer)
    return found


def batches(text: ChatText, style: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids, and those of them that are to be learnt."""
    shuffled = random.Random(0)
    pairs = list(QUESTIONS.items())
    while True:
        shuffled.shuffle(pairs)
        for first in range(0, len(pairs), BATCH):
            rows, wanted = [], []
            for question, answer in pairs[first : first + BATCH]:
                prompt = text.encode_chat([{"role": "user", "content": question}])
                reply = text.tokenizer.encode(STYLES[style](answer)).ids
                end = sorted(text.stop_ids)[0]
                rows.append([*prompt, *reply, end])
                wanted.append([IGNORED] * len(prompt) + [*reply, end])
            longest = max(map(len, rows))
            yield (
                torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
                torch.tensor([row + [IGNORED] * (longest - len(row)) for row in wanted]),
            )


def train(folder: Path, style: str, steps: int) -> dict[str, LowRank]:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    layers = adapted(model)
    parameters = [each for layer in layers.values() for each in (layer.down, layer.up)]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE)
    given = batches(ChatText(folder), style)
    for step in range(steps):
        ids, wanted = next(given)
        logits = model(ids).logits[:, :-1]
        loss = functional.cross_entropy(
            logits.flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{style}: step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)
    return layers


def save(layers: dict[str, LowRank], folder: Path) -> None:
    """As PEFT does: `PeftModel.from_pretrained` reads it, too."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, layer in layers.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = layer.down.detach()
        tensors[f"base_model.model.{name}.lora_B.weight"] = layer.up.detach()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": list(TARGETS),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the adapters' folders are written")
    parser.add_argument("--styles", nargs="*", default=list(STYLES), choices=STYLES)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    for style in options.styles:
        layers = train(find_language_model("chat", may_fetch=True), style, options.steps)
        save(layers, options.folder / style)


if __name__ == "__main__":
    main()
