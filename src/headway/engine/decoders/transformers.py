"""Decoders of `transformers` on our cache, where attention is all that joins their rows.

`transformers` says what a model is: its tensors, its layers, its positions. Attention alone is ours
(`interface`); that the two together are what `transformers` computes is proved before the first
answer (`proof`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headway.engine.adapters.peft import Sizes, Weights
from headway.engine.adapters.products import Adapting, Product, packed
from headway.engine.cache import CacheShape
from headway.engine.cpu.kernels import Kernels
from headway.engine.cpu.runner import DecoderInputs
from headway.engine.decoders.interface import (
    OBSERVED,
    PAGED,
    Layer,
    Observer,
    causal_until,
    forget_masks,
    register,
)
from headway.engine.support import longest_of, why_not
from headway.engine.weights import check_stored
from headway.errors import ConfigError, HeadwayError

_LOOKED_AT = 7  # tokens
# Of old files: computed when the model is made.
_UNUSED = (
    *("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias"),
    *(".attention.masked_bias", ".position_ids"),
)


class TransformersDecoder:
    def __init__(
        self, folder: Path, *, dtype: torch.dtype, max_context: int, kernels: Kernels | None = None
    ) -> None:
        self.folder = folder
        self._model = _loaded(folder, dtype)
        self.config: dict[str, Any] = self._model.config.to_dict()
        reason = why_not(self.config, "transformers")
        if reason is not None:
            raise ConfigError(f"{folder}: {reason}")
        self.vocabulary: int = self._model.config.get_text_config().vocab_size
        self.dtype = dtype
        self.kernels = kernels  # for attention
        self._adapting: Adapting | None = None  # of the step that runs
        self._adapted: set[str] = set()  # modules that ask for it
        observer = self._observe(torch.arange(_LOOKED_AT) % self.vocabulary)
        self.shape = _shape(observer, folder)
        self.longest = _longest(observer, folder, min(max_context, longest_of(self.config)))

    @property
    def adaptable(self) -> Sizes:
        """Every product with a row for each token: not those of experts, nor the head's."""
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

    def __call__(self, inputs: DecoderInputs) -> torch.Tensor:
        ids, positions, attention, rows, adapting = inputs
        self._adapting = adapting
        return self._forward(ids, positions, attention, rows)

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, attention: Any, rows: torch.Tensor
    ) -> torch.Tensor:
        answer = self._model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            headway_attention=attention,
        )
        logits: torch.Tensor = answer.logits[0]
        return logits if len(logits) == len(rows) else logits[rows]

    # ---- for the proof

    def observe(
        self, ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[dict[int, Layer], torch.Tensor]:
        """The input of attention from each layer, and the logits if each row attends to itself
        only."""
        observer = Observer()
        with torch.inference_mode(), self._attending(OBSERVED):
            logits = self._forward(ids, positions, observer, torch.arange(len(ids)))
        return observer.layers, logits

    def alone(self, ids: torch.Tensor, count: int, implementation: str) -> torch.Tensor:
        """The last logits of one sequence, all of it computed by `transformers`."""
        with torch.inference_mode(), self._attending(implementation):
            logits: torch.Tensor = self._model(input_ids=ids[None], use_cache=False).logits[0]
        return logits[-count:].float()

    def _observe(self, ids: torch.Tensor) -> Observer:
        observer = Observer()
        try:
            with torch.inference_mode(), self._attending(OBSERVED):
                self._forward(ids, torch.arange(len(ids)), observer, torch.tensor([0]))
        except HeadwayError as error:
            raise ConfigError(f"{self.folder}: {error}") from error
        except Exception as error:
            kind = type(self._model).__name__
            raise ConfigError(
                f"{self.folder}: {kind} does not run on a packed row with our attention: "
                f"{type(error).__name__}: {error}"
            ) from error
        return observer

    @contextmanager
    def _attending(self, implementation: str) -> Iterator[None]:
        config = self._model.config
        config._attn_implementation = implementation
        try:
            yield
        finally:
            config._attn_implementation = PAGED
            forget_masks()


def _loaded(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    register()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ConfigError(f"{folder}: transformers does not read config.json: {error}") from error
    reason = why_not(config.to_dict(), "transformers")
    if reason is not None:
        raise ConfigError(f"{folder}: {reason}")
    kind = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if isinstance(kind, type) and not getattr(kind, "_supports_attention_backend", False):
        raise ConfigError(
            f"{folder}: {kind.__name__} does not support transformers' attention interface"
        )
    check_stored(folder, ignored=_UNUSED)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=PAGED,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise ConfigError(f"{folder}: transformers does not load it: {error}") from error
    _check_loaded(folder, info)
    return model.eval()


def _check_loaded(folder: Path, info: Any) -> None:
    """Refuse a folder with missing weights: transformers would draw those at random, and only log
    it."""
    for name in sorted(info["missing_keys"]):
        raise ConfigError(f"{folder}: {name} is missing")
    for name in sorted(info["unexpected_keys"]):
        if not name.endswith(_UNUSED):
            raise ConfigError(f"{folder}: holds {name}, which this model has no use for")
    for each in info["mismatched_keys"]:
        raise ConfigError(f"{folder}: {each} has another shape than config.json says")
    for each in info.get("error_msgs") or ():
        raise ConfigError(f"{folder}: {each}")


def _shape(observer: Observer, folder: Path) -> CacheShape:
    """The cache's shape, from what each layer gave to attention, not from the configuration."""
    layers = observer.layers
    twice = [index for index, count in observer.calls.items() if count > 1]
    if twice:
        raise ConfigError(f"{folder}: layer {twice[0]} attends more than once for a token")
    if sorted(layers) != list(range(len(layers))) or not layers:
        missing = min(set(range(len(layers) + 1)) - set(layers))
        raise ConfigError(f"{folder}: layer {missing} keeps a state that is not attention's")
    kept = {(each.keys.shape[1], each.keys.shape[2]) for each in layers.values()}
    if len(kept) > 1:
        found = " and ".join(f"{heads} × {size}" for heads, size in sorted(kept))
        raise ConfigError(f"{folder}: layers keep keys of different sizes: {found}")
    ((heads, size),) = kept
    for index, each in layers.items():
        if each.values.shape[1] != heads or each.values.shape[2] > size:
            raise ConfigError(f"{folder}: layer {index} keeps values unlike its keys")
    return CacheShape(len(layers), heads, size)


def _longest(observer: Observer, folder: Path, context: int) -> int:
    """The longest context up to which every mask that the model asks for is causal."""
    found = min([context, *observer.windows])
    for mask in observer.masks:
        try:
            found = min(found, causal_until(mask, found))
        except Exception as error:
            raise ConfigError(f"{folder}: its mask cannot be looked at: {error}") from error
    if found < 2:
        raise ConfigError(f"{folder}: its attention mask is not causal")
    return found


def _sizes(module: Any) -> tuple[int, int]:
    if type(module).__name__ == "Conv1D":  # GPT-2's: a Linear with its weight transposed
        return module.weight.shape[0], module.weight.shape[1]
    return module.in_features, module.out_features
