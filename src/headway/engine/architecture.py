"""The parts of Llama and its kin (Mistral, Qwen2, Qwen3, SmolLM2): read once from config.json, for
every device. `support.py` says which of them can be computed, and why others cannot."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# What a model's own class takes for keys that config.json leaves out.
_COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_WINDOWED = {"use_sliding_window": False, "sliding_window": 4096, "max_position_embeddings": 32768}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, "max_position_embeddings": 2048},
    "mistral": {
        **_COMMON,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "qwen2": {**_COMMON, **_WINDOWED, "num_key_value_heads": 32},
    "qwen3": {**_COMMON, **_WINDOWED, "num_key_value_heads": 32, "head_dim": 128},
}

Modules = dict[str, tuple[int, int]]  # in and out, by transformers' names


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with defaults for missing keys, as the model's own class has them."""
    return {**DEFAULTS[config.get("model_type", "llama")], **config}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSpec:
    layers: int
    hidden: int
    inner: int  # of the MLP
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    epsilon: float  # of the norms
    rope: Mapping[str, Any]
    is_tied: bool  # the head is the embedding
    has_head_norms: bool  # of queries and keys
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "LlamaSpec":
        config = completed(config)
        kind, heads = config.get("model_type"), config["num_attention_heads"]
        bias = bool(config.get("attention_bias"))
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            inner=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            epsilon=config["rms_norm_eps"],
            rope=rope_of(config),
            is_tied=bool(config["tie_word_embeddings"]),
            has_head_norms=kind == "qwen3",
            qkv_bias=bias or kind == "qwen2",
            out_bias=bias,
            mlp_bias=bool(config.get("mlp_bias")),
        )

    def products(self, layer: int) -> dict[str, Modules]:
        """A layer's matrix products as they are computed, and of each the modules in it."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        return {
            "qkv": {
                f"{attention}.q_proj": (self.hidden, queries),
                f"{attention}.k_proj": (self.hidden, keys),
                f"{attention}.v_proj": (self.hidden, keys),
            },
            "out": {f"{attention}.o_proj": (queries, self.hidden)},
            "gate_up": {
                f"{mlp}.gate_proj": (self.hidden, self.inner),
                f"{mlp}.up_proj": (self.hidden, self.inner),
            },
            "down": {f"{mlp}.down_proj": (self.inner, self.hidden)},
        }

    def modules(self) -> Modules:
        return {
            module: sizes
            for layer in range(self.layers)
            for product in self.products(layer).values()
            for module, sizes in product.items()
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The tensors that a folder contains, with their shapes."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        yield "model.norm.weight", (self.hidden,)
        if not self.is_tied:
            yield "lm_head.weight", (self.vocabulary, self.hidden)
        biased = {
            "qkv": self.qkv_bias,
            "out": self.out_bias,
            "gate_up": self.mlp_bias,
            "down": self.mlp_bias,
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            yield prefix + "input_layernorm.weight", (self.hidden,)
            yield prefix + "post_attention_layernorm.weight", (self.hidden,)
            if self.has_head_norms:
                yield prefix + "self_attn.q_norm.weight", (self.head_size,)
                yield prefix + "self_attn.k_norm.weight", (self.head_size,)
            for product, modules in self.products(layer).items():
                for module, (inputs, outputs) in modules.items():
                    yield f"{module}.weight", (outputs, inputs)
                    if biased[product]:
                        yield f"{module}.bias", (outputs,)


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope's parameters, wherever this version of transformers has written them."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = dict(parameters)
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return rope
