"""Start an engine from a model's folder: choose its device, precision and KV cache size."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headway.core.generation.limits import EngineLimits
from headway.engine.cpu.building import compiled, multiplies_bf16
from headway.engine.cpu.runner import CpuRunner
from headway.engine.decoders.loading import load
from headway.engine.support import longest_of, text_config_of, why_not
from headway.errors import ConfigError
from headway.files import read_json
from headway.machine import container_cores, free_host_bytes

if TYPE_CHECKING:
    from headway.engine.gpu.steps.runner import GpuRunner

_log = logging.getLogger(__name__)
_GIB = 1 << 30
_UNKNOWN = 8 * _GIB  # assumed as free, where the system does not report its free memory
_SEQUENCES = 64  # at once: with more decodes, a step takes a CPU too long
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DTYPES = ("auto", *_DTYPES)
QUANTIZATIONS = ("none", "fp8", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    max_context: int | None = None  # None: the model's own, up to 8192
    max_sequences: int | None = None  # None: 64, on a GPU 256
    step_tokens: int = 512
    kv_cache_gib: float | None = None  # None: a quarter of what is free, up to 4
    dtype: str = "auto"
    block_size: int = 16
    threads: int | None = None
    use_transformers: bool = False
    quantization: str = "none"  # fp8 (GPU): the layers' weights; int8 (CPU): the head's as well
    adapter_slots: int | None = None  # None: 8, but on a GPU only with `adapters`
    max_adapter_rank: int | None = None  # None: 64, on a GPU 16
    adapters: bool = False  # whether any will be loaded: a GPU keeps memory and graphs for them
    device: str = "auto"  # cpu or cuda; auto: cuda where there is one
    # For benchmarks.
    random_weights: bool = False  # no file of weights is read
    kernels: str = "auto"  # torch: not our own kernels for this CPU
    chunking: bool = True  # False: a prompt is computed in one step while all others wait

    def __post_init__(self) -> None:
        for name in ("max_context", "max_sequences", "step_tokens", "threads", "max_adapter_rank"):
            value = getattr(self, name)
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_number and value >= 1):
                raise ConfigError(f"must be a whole number from 1 on, not {value!r}", field=name)
        size = self.kv_cache_gib
        if size is not None and not (isinstance(size, int | float) and 0 < size < math.inf):
            raise ConfigError(f"must be a number above 0, not {size!r}", field="kv_cache_gib")


def start(folder: Path, options: EngineOptions) -> "CpuRunner | GpuRunner":
    if options.quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise ConfigError(f"{options.quantization!r} is not one of {known}", field="quantization")
    config = read_json(folder / "config.json")
    reason = why_not(config, "transformers")  # what no engine computes
    if reason is not None:
        raise ConfigError(f"{folder}: {reason}")
    if _device_of(options) == "cuda":
        if options.quantization == "int8":
            raise ConfigError("int8 weights are for a CPU; a GPU has fp8", field="quantization")
        from headway.engine.starting.gpu import start_on_gpu

        return start_on_gpu(folder, config, options, _context(config, options))
    if options.quantization == "fp8":
        raise ConfigError("fp8 weights need a GPU", field="quantization")
    return _start_on_cpu(folder, config, options)


def _start_on_cpu(folder: Path, config: Mapping[str, Any], options: EngineOptions) -> CpuRunner:
    torch.set_num_threads(options.threads or _threads())
    dtype = dtype_of(options.dtype)
    max_context = _context(config, options)
    is_rounded = options.quantization == "int8"
    kernels = compiled(dtype, _common_width(config)) if options.kernels == "auto" else None
    decoder = load(
        folder,
        dtype=dtype,
        max_context=max_context,
        use_transformers=options.use_transformers,
        random_weights=options.random_weights,
        kernels=kernels,
        is_rounded=is_rounded,
    )
    if is_rounded and kernels is None:
        _log.warning(
            "int8 makes nothing faster here: weights are rounded to 8 bits, but torch multiplies "
            "them in floats. The kernels for 8 bits need an x86-64 CPU with AVX2, Linux and a C "
            "compiler"
        )
    if decoder.longest < max_context:
        _log.warning(
            "sequences are limited to %d tokens: this model is inexact on longer ones",
            decoder.longest,
        )
        max_context = decoder.longest
    block_bytes = decoder.shape.block_bytes(options.block_size, dtype)
    limits = _limits(options, max_context, block_bytes)
    try:
        runner = CpuRunner(decoder, limits, max_adapter_rank=options.max_adapter_rank or 64)
    except (OSError, MemoryError) as error:
        size = limits.blocks * block_bytes / _GIB
        raise ConfigError(
            f"there is no memory for a KV cache of {size:.3g} GiB: {error}", field="kv_cache_gib"
        ) from error
    weights = " with int8 weights" if is_rounded else ""
    computed_by = "torch" if kernels is None else f"kernels for {kernels.instructions}"
    dtype_name = str(dtype).removeprefix("torch.")
    runner.computes = f"in {dtype_name}{weights} on the CPU by {computed_by}"
    return runner


def _limits(options: EngineOptions, context: int, block_bytes: int) -> EngineLimits:
    sequences = options.max_sequences or _SEQUENCES
    # Only the prefix cache can use more blocks than all sequences at their longest.
    useful = 4 * sequences * -(-context // options.block_size)
    blocks = _blocks(options.kv_cache_gib, block_bytes, useful)
    tokens = blocks * options.block_size
    if tokens < context:
        _log.warning(
            "the KV cache holds %d tokens, which limits every sequence; the context could be %d: "
            "set a larger kv_cache_gib, or a smaller max_context",
            *(tokens, context),
        )
    return EngineLimits(
        blocks=blocks,
        block_size=options.block_size,
        max_context=min(context, tokens),
        max_sequences=sequences,
        step_tokens=max(options.step_tokens, sequences + 1),
        chunking=options.chunking,
        adapter_slots=8 if options.adapter_slots is None else options.adapter_slots,
    )


def _blocks(wanted_gib: float | None, block_bytes: int, useful: int) -> int:
    """The blocks that fit into `wanted_gib` or the free memory, at most `useful`."""
    free = free_host_bytes() or _UNKNOWN
    room = int(wanted_gib * _GIB) if wanted_gib is not None else min(free // 4, 4 * _GIB)
    blocks = min(room // block_bytes, useful)
    if blocks < 1:
        raise ConfigError(
            f"{room / _GIB:.3g} GiB are too little for one block of {block_bytes} bytes",
            field="kv_cache_gib",
        )
    if blocks * block_bytes > free:
        _log.warning(
            "the KV cache may grow to %.1f GiB, and %.1f GiB are free: set a smaller kv_cache_gib",
            *(blocks * block_bytes / _GIB, free / _GIB),
        )
    return blocks


def _threads() -> int:
    """torch's default, one thread for each core, limited to the container's cores: with more, the
    container uses up its CPU quota early and is stopped for the rest of each tenth of a second."""
    torch_threads: int = torch.get_num_threads()
    return max(1, min(torch_threads, round(container_cores() or torch_threads)))


def _common_width(config: Mapping[str, Any]) -> int:
    """The largest number that divides the widths of all rows."""
    config = text_config_of(config)
    names = ("num_attention_heads", "hidden_size", "head_dim", "intermediate_size")
    sizes = [each if isinstance(each, int) else 0 for each in map(config.get, names)]
    heads, hidden, head, inner = sizes
    return math.gcd(hidden, inner, head or (hidden // heads if heads else 0))


def _context(config: Mapping[str, Any], options: EngineOptions) -> int:
    longest, asked = longest_of(config), options.max_context
    if asked is not None and asked > longest:
        _log.warning("max_context is %d; the model's own, %d, is used", asked, longest)
    return min(asked or 8192, longest)


def _device_of(options: EngineOptions) -> str:
    has_cuda = torch.cuda.is_available()
    if options.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"{options.device!r} is not one of auto, cpu, cuda", field="device")
    if options.device == "cuda" and not has_cuda:
        raise ConfigError("torch sees no CUDA device", field="device")
    is_wanted = options.device == "cuda" or (options.device == "auto" and has_cuda)
    return "cuda" if is_wanted and not options.use_transformers else "cpu"


def dtype_of(asked: str) -> torch.dtype:
    """`auto` is bf16 where this CPU multiplies it natively, else fp32."""
    if asked == "auto":
        return torch.bfloat16 if multiplies_bf16() else torch.float32
    if asked not in _DTYPES:
        raise ConfigError(f"{asked!r} is not one of {', '.join(DTYPES)}", field="dtype")
    return _DTYPES[asked]
