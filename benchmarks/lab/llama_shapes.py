"""Shapes of published models, as folders without weights: `headway serve FOLDER --options
random_weights=true` draws those."""

import json
from pathlib import Path
from typing import Any

_LLAMA3: dict[str, Any] = {"vocab_size": 128_256, "num_attention_heads": 32}
SHAPES: dict[str, dict[str, Any]] = {
    "1B": {
        **_LLAMA3,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8B": {
        **_LLAMA3,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    # For a CPU: to see that a benchmark runs.
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 4096,
        "tie_word_embeddings": True,
    },
}
_COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save_folder(folder: Path, shape: str) -> Path:
    """Its configuration, and a tokenizer of as many words, each token one of them."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    config = {**_COMMON, **SHAPES[shape]}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {f"Ġ{_letters(number)}": number for number in range(config["vocab_size"])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _letters(number: int) -> str:
    text = ""
    while True:
        number, letter = divmod(number, 26)
        text += chr(ord("a") + letter)
        if not number:
            return text
