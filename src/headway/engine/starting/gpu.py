"""An engine on the GPU from a folder: what fits into its memory, and graphs captured before it is
ready."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headway.core.generation.limits import EngineLimits
from headway.engine.architecture import LlamaSpec
from headway.engine.gpu.steps.adapters import DeviceAdapters
from headway.engine.gpu.steps.decoder import GpuDecoder
from headway.engine.gpu.steps.runner import GpuRunner
from headway.engine.gpu.steps.warming import warm_mixed
from headway.engine.gpu.tuning import check_device, this_device
from headway.engine.starting import EngineOptions
from headway.engine.support import why_not
from headway.engine.weights import random_tensors, read_llama
from headway.errors import ConfigError

_GIB = 1 << 30
_SHARE = 0.90  # of the device's memory: for weights, cache and what a step needs
_BLOCK_SIZE = 32
_STEP_TOKENS = 8192
_SEQUENCES = 256  # at once: until there, one more costs a step little
# The gap that most tokens have is a step of decodes alone; a step with a chunk may take a few times
# as long, never more. Prompts so get done in few steps: each reads all weights again.
_MAX_STRETCH, _LATE_STRETCH, _BURST_STRETCH = 4.5, 5.5, 2.0
_LATE_AFTER = 2.6  # times as long as a prompt takes alone
_TILE = 128  # rows of the vendor's matrix products
_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def start_on_gpu(
    folder: Path, config: Mapping[str, Any], options: EngineOptions, context: int
) -> GpuRunner:
    reason = why_not(config, "gpu")
    if reason is not None:
        raise ConfigError(f'not computed on a GPU, try device = "cpu": {reason}', field="device")
    spec = LlamaSpec.of(config)
    dtype = _DTYPES.get(options.dtype)
    if dtype is None:
        raise ConfigError(f"{options.dtype!r} is not one of {', '.join(_DTYPES)}", field="dtype")
    check_device(dtype, options.quantization, this_device())
    tensors = (
        random_tensors(spec, dtype=dtype, device="cuda")
        if options.random_weights
        else read_llama(folder, spec)
    )
    decoder = GpuDecoder(spec, tensors, dtype=dtype, device="cuda", max_context=context)
    if options.quantization == "fp8":
        decoder.quantise()
        torch.cuda.empty_cache()  # so that the cache can use what loading needed
    adapters = _adapters(options, spec, dtype)  # before the cache: it takes what is left
    step_tokens = max(options.step_tokens, _STEP_TOKENS)
    block_bytes = decoder.shape.block_bytes(_BLOCK_SIZE, dtype)
    blocks = _room(options, spec, step_tokens, dtype) // block_bytes
    if blocks < 1:
        raise ConfigError(
            "the device's free memory is too little for one block of the cache",
            field="kv_cache_gib",
        )
    limits = EngineLimits(
        blocks=blocks,
        block_size=_BLOCK_SIZE,
        max_context=context,
        max_sequences=options.max_sequences or _SEQUENCES,
        step_tokens=step_tokens,
        chunking=options.chunking,
        max_stretch=_MAX_STRETCH,
        late_stretch=_LATE_STRETCH,
        late_after=_LATE_AFTER,
        burst_stretch=_BURST_STRETCH,
        has_rests=True,
        tile=_TILE,
        adapter_slots=_slots(options),
    )
    runner = GpuRunner(decoder, limits, adapters)
    runner.warm_up()
    warm_mixed(runner)
    return runner


def _slots(options: EngineOptions) -> int:
    if options.adapter_slots is not None:
        return options.adapter_slots
    return 8 if options.adapters else 0


def _adapters(options: EngineOptions, spec: LlamaSpec, dtype: torch.dtype) -> DeviceAdapters | None:
    if not _slots(options):
        return None
    return DeviceAdapters(
        spec,
        slots=_slots(options),
        sequences=options.max_sequences or _SEQUENCES,
        max_rank=options.max_adapter_rank or 16,
        dtype=dtype,
        device="cuda",
    )


def _room(options: EngineOptions, spec: LlamaSpec, step_tokens: int, dtype: torch.dtype) -> int:
    """The bytes for the cache: those asked for, or those that weights and a step leave free."""
    if options.kv_cache_gib is not None:
        return int(options.kv_cache_gib * _GIB)
    torch.cuda.empty_cache()  # single matrices that were packed
    free, total = torch.cuda.mem_get_info()
    widest = max(2 * spec.inner, spec.vocabulary // 8)
    step = 3 * step_tokens * widest * dtype.itemsize + 3 * _GIB  # and graphs
    return int(min(free, total * _SHARE - (total - free)) - step)
