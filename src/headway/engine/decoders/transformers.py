"""Any decoder of `transformers` that supports its attention interface, on our cache.

An attention function is registered under our name, and no mask function: transformers then builds
no mask and hands our keyword through every layer.
"""

from pathlib import Path
from typing import Any

import torch

from headway.engine.adapters.peft import Sizes, Weights
from headway.engine.adapters.products import Adapting, Product, packed
from headway.engine.attention.base import Attention
from headway.engine.cache import Shape
from headway.engine.cpu.kernels import Kernels
from headway.errors import ConfigError

_NAME = "headway_paged"


class TransformersDecoder:
    def __init__(self, folder: Path, *, dtype: torch.dtype, kernels: Kernels | None = None) -> None:
        from transformers import AttentionInterface, AutoModelForCausalLM

        AttentionInterface.register(_NAME, _attention)
        self._model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=_NAME,
            local_files_only=True,
            trust_remote_code=False,
        ).eval()
        kind = type(self._model)
        if not getattr(kind, "_supports_attention_backend", False):
            raise ConfigError(
                f"{folder}: {kind.__name__} does not support transformers' attention interface"
            )
        config = self._model.config.get_text_config()
        _check(config, folder)
        heads = config.num_attention_heads
        features = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        self.vocabulary: int = config.vocab_size
        self.shape = Shape(config.num_hidden_layers, kv_heads, features)
        self.dtype = dtype
        self.kernels = kernels  # for attention
        self._adapting: Adapting | None = None  # of the step that runs
        self._adapted: set[str] = set()  # modules that ask for it

    @property
    def adaptable(self) -> Sizes:
        """Every product that has a row for each token: experts and the head have not."""
        head = self._model.get_output_embeddings()
        return {
            name: _sizes(module)
            for name, module in self._model.named_modules()
            if type(module).__name__ in ("Linear", "Conv1D")
            and module is not head
            and "expert" not in name
        }

    def packed(self, weights: Weights) -> dict[str, Product]:
        found = {}
        for name in weights:
            if name not in self._adapted:
                self._adapted.add(name)
                self._model.get_submodule(name).register_forward_hook(self._hook(name))
            made = packed(weights, [(name, weights[name].up.shape[0])], self.dtype)
            assert made is not None
            found[name] = made
        return found

    def _hook(self, name: str) -> Any:
        def hook(module: Any, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
            if self._adapting is not None:
                self._adapting.add(name, given[0].flatten(0, -2), out.flatten(0, -2))

        return hook

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
        adapting: Adapting | None = None,
    ) -> torch.Tensor:
        """The logits after these rows."""
        self._adapting = adapting
        answer = self._model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            headway_attention=attention,
        )
        logits: torch.Tensor = answer.logits[0]
        return logits


def _sizes(module: Any) -> tuple[int, int]:
    if type(module).__name__ == "Conv1D":  # GPT-2's: a Linear with its weight transposed
        return module.weight.shape[0], module.weight.shape[1]
    return module.in_features, module.out_features


def _check(config: Any, folder: Path) -> None:
    """Refuse what would be computed wrongly: our attention knows neither of these."""
    if getattr(config, "attn_logit_softcapping", None):
        raise ConfigError(f"{folder}: models that cap attention's logits are not supported")
    if config.model_type == "gpt_oss":
        raise ConfigError(f"{folder}: models with attention sinks are not supported")


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    headway_attention: Attention,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """`[1, head, token, feature]`, queries and keys already rotated."""
    packed = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    out = headway_attention(module.layer_idx, *packed, scale=scaling)
    return out[None], None
