"""Loads a decoder for the CPU from a folder: our own definition for Llama's kin, else that of
transformers, which is proved first."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headway.engine.architecture import LlamaSpec
from headway.engine.cpu.kernels import Kernels
from headway.engine.cpu.runner import Decoder
from headway.engine.decoders.llama import LlamaDecoder
from headway.engine.support import why_not
from headway.engine.weights import random_tensors, read_llama
from headway.errors import ConfigError
from headway.files import read_json

_log = logging.getLogger(__name__)


def load(
    folder: Path,
    *,
    dtype: torch.dtype,
    max_context: int,
    use_transformers: bool = False,
    random_weights: bool = False,
    kernels: Kernels | None = None,
    is_rounded: bool = False,
) -> Decoder:
    config = read_json(folder / "config.json")
    reason = why_not(config, "own")
    if reason is None and not use_transformers:
        spec = LlamaSpec.of(config)
        tensors = (
            random_tensors(spec, dtype=dtype, device="cpu")
            if random_weights
            else read_llama(folder, spec)
        )
        return LlamaDecoder(
            spec,
            tensors,
            dtype=dtype,
            max_context=max_context,
            kernels=kernels,
            is_rounded=is_rounded,
        )
    if is_rounded:
        raise ConfigError(f"int8 is for models of Llama's kind; {reason}", field="quantization")
    if random_weights:
        raise ConfigError(
            f"is for models of Llama's kind; {reason}", field="options.random_weights"
        )
    _log.info("computed through transformers, %s", reason or "as is asked")
    return _of_transformers(folder, config, dtype, max_context, kernels)


def _of_transformers(
    folder: Path,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    max_context: int,
    kernels: Kernels | None,
) -> Decoder:
    reason = why_not(config, "transformers")
    if reason is not None:  # before transformers is imported, and its own defaults are read
        raise ConfigError(f"{folder}: {reason}")
    try:
        from headway.engine.decoders.proof import prove
        from headway.engine.decoders.transformers import TransformersDecoder
    except ImportError as error:
        raise ConfigError(f"{folder} needs transformers: {error}") from error
    decoder = TransformersDecoder(folder, dtype=dtype, max_context=max_context, kernels=kernels)
    prove(decoder)
    return decoder
