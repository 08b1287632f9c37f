"""A tiny model that has learned something: the beginning of Moby Dick, letter by letter, in some
seconds. What it says is known, so that a person sees at once whether an engine computes it right.
"""

from typing import Any

import torch

TEXT = """\
Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in \
my purse, and nothing particular to interest me on shore, I thought I would sail about a little \
and see the watery part of the world."""
BEGINNING = TEXT[:16]
LETTERS = sorted(set(TEXT))
STEPS, WINDOW, BATCH, LEARNING_RATE = 100, 64, 16, 5e-3


def encoded(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def decoded(ids: list[int]) -> str:
    return "".join(LETTERS[each] for each in ids)


def trained(device: str) -> Any:
    """Transformers' model, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=len(LETTERS),
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float().to(device).train()
    ids = torch.tensor(encoded(TEXT), device=device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        starts = torch.randint(0, len(TEXT) - WINDOW, (BATCH,), generator=generator).tolist()
        windows = torch.stack([ids[start : start + WINDOW] for start in starts])
        loss = model(windows, labels=windows).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def greedy(model: Any, beginning: str, count: int) -> str:
    """What transformers says: every token computed from the whole text so far."""
    ids = encoded(beginning)
    with torch.inference_mode():
        for _ in range(count):
            given = torch.tensor([ids[-WINDOW * 4 :]], device=model.device)
            ids.append(int(model(given).logits[0, -1].argmax()))
    return decoded(ids[len(beginning) :])
