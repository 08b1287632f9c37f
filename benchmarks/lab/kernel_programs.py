"""Every program that the engine launches on a GPU, compiled where there is none:
`python -m benchmarks.lab.kernel_programs OUT.json [--on GPU] [--stages STAGE …]`; Triton and
torch are enough.

The engine's own runner is driven over tensors without data, so that shapes, dtypes, tunings and
alignments are the ones that it launches with. Triton compiles for the GPU instead of launching.
What a program is, is told by its machine code and by what it takes of a processor.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks.lab.llama_shapes import SHAPES
from headway.core.generation.limits import EngineLimits
from headway.core.generation.step import Decode, Prefill, Step
from headway.engine.architecture import LlamaSpec
from headway.engine.gpu.kernels import adapters as adapter_kernels
from headway.engine.gpu.kernels import eight_bit, inputs
from headway.engine.gpu.tuning import H200, Device

DEVICES = {
    "H200": H200,
    "A100": Device("NVIDIA A100-SXM4-80GB", 108, 166_912, (8, 0)),
    "4090": Device("NVIDIA GeForce RTX 4090", 128, 101_376, (8, 9)),
}
DEVICE = "meta"  # tensors without data
SMALL = {
    **{"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32},
    **{"num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False},
}
RENAMED = {("decode", "_attend"): "_attend_one", ("prefill", "_attend"): "_attend_many"}


@dataclass(frozen=True, slots=True)
class Program:
    kernel: str  # file and function
    variant: str  # constants, types, alignments, warps
    instructions: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    code: str  # a hash of the machine code


class Target:
    """Triton's driver, as far as compiling asks for one."""

    def __init__(self, device: Device) -> None:
        self._capability = device.capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 10 * self._capability[0] + self._capability[1], 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


class Compiled:
    """Takes the place of Triton's launch."""

    def __init__(self, device: Device) -> None:
        self.programs: dict[tuple[str, str], Program] = {}
        self.used: dict[tuple[str, str], list[str]] = {}
        self.stage = ""
        self._launch = JITFunction.run
        driver.set_active(Target(device))
        JITFunction.run = lambda kernel, *args, **options: self._compile(kernel, args, options)

    def _compile(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        options["warmup"] = True
        made = self._launch(kernel, *args, **options)
        module = kernel.fn.__module__.rpartition(".")[2]
        name = RENAMED.get((module, kernel.fn.__name__), kernel.fn.__name__)
        key = f"{module}.{name}", _variant(made)
        if key not in self.programs:
            self.programs[key] = Program(*key, **_described(made))
        stages = self.used.setdefault(key, [])
        if self.stage not in stages:
            stages.append(self.stage)

    def told(self) -> list[dict[str, Any]]:
        return [{**asdict(each), "stages": self.used[key]} for key, each in self.programs.items()]


def _variant(made: Any) -> str:
    source = made.src
    names = list(source.signature)
    types = {name: kind for name, kind in source.signature.items() if kind != "constexpr"}
    constants = ((names[path[0]], value) for path, value in source.constants.items())
    told = [f"{name}={value}" for name, value in constants]
    told.append(f"warps={made.metadata.num_warps}")
    aligned = {names[path[0]] for path, attributes in source.attrs.items() if attributes}
    loose = [name for name, kind in types.items() if kind != "fp32" and name not in aligned]
    told.append("types=" + ",".join(types.values()))
    told.append("loose=" + ",".join(loose))  # neither pointers to 16 bytes nor multiples of 16
    return " ".join(told)


_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);?\s+(/\* 0x[0-9a-f]{16} \*/)", re.M)
_SECOND_HALF = re.compile(r"^\s+(/\* 0x[0-9a-f]{16} \*/)", re.M)


def _described(made: Any) -> dict[str, Any]:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"headway-kernel-{os.getpid()}.cubin"
    path.write_bytes(made.asm["cubin"])
    try:
        told = subprocess.run(
            [_TOOLS / "cuobjdump", "--dump-sass", "--dump-resource-usage", path],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    finally:
        path.unlink()
    found = _INSTRUCTION.findall(told)
    code = "".join([code for _, code in found] + _SECOND_HALF.findall(told))
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", told)}
    return {
        "instructions": sum(not text.startswith("NOP") for text, _ in found),
        "registers": usage["REG"],
        "stack_bytes": usage["STACK"],
        "shared_bytes": made.metadata.shared,
        "code": hashlib.sha256(code.encode()).hexdigest()[:16],
    }


# ---- what the engine launches


def _tensors(spec: LlamaSpec, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    from headway.engine.weights import random_tensors

    return random_tensors(spec, dtype=dtype, device=DEVICE)


def _launch_all(
    config: dict[str, Any],
    dtype: torch.dtype = torch.bfloat16,
    *,
    context: int = 2304,
    sequences: int = 256,
    step_tokens: int = 8192,
    page: int = 32,
    is_fp8: bool = False,
    has_adapters: bool = False,
) -> None:
    from headway.engine.gpu.steps.adapters import DeviceAdapters
    from headway.engine.gpu.steps.decoder import GpuDecoder
    from headway.engine.gpu.steps.inputs import MixedSizes
    from headway.engine.gpu.steps.runner import GpuRunner

    spec = LlamaSpec.of({**config, "num_hidden_layers": 1})
    tensors = _tensors(spec, dtype)
    decoder = GpuDecoder(spec, tensors, dtype=dtype, device=DEVICE, max_context=context)
    if is_fp8:
        decoder.quantise()
    limits = EngineLimits(
        blocks=512,
        block_size=page,
        max_context=context,
        max_sequences=sequences,
        step_tokens=step_tokens,
    )
    adapters = None
    if has_adapters:
        most = {"slots": 8, "sequences": sequences, "max_rank": 16}
        adapters = DeviceAdapters(spec, **most, dtype=dtype, device=DEVICE)
    runner = GpuRunner(decoder, limits, adapters)
    runner.warm_up()
    many = MixedSizes(step_tokens, 0, min(sequences, 32))  # one without a graph
    for shape in (*runner._sizes, *runner._mixed_sizes.all(), many):
        runner._launch(shape, has_adapters)
    tokens = tuple(range(40))
    prompt = Prefill(2, 1, 0, tokens, (0, 1), is_first=True, is_last=True)
    runner._hand_mixed(Step(1, (Decode(1, 0, 3, ()),), (prompt,), (), ()))


STAGES: dict[str, Callable[[], None]] = {
    "1B": lambda: _launch_all(SHAPES["1B"]),
    "8B": lambda: _launch_all(SHAPES["8B"]),
    "1B served": lambda: _launch_all(SHAPES["1B"], context=8192),
    "8B served": lambda: _launch_all(SHAPES["8B"], context=8192),
    "8B adapters": lambda: _launch_all(SHAPES["8B"], has_adapters=True),
    "8B fp8": lambda: _launch_all(SHAPES["8B"], is_fp8=True),
    "1B logits": lambda: _launch_logits("1B"),
    "8B logits": lambda: _launch_logits("8B"),
    "right": lambda: _launch_all(
        SMALL, torch.float32, context=600, sequences=16, step_tokens=512, page=16
    ),
    "adapters right": lambda: _launch_all(
        *(SMALL, torch.float32),
        **{"context": 600, "sequences": 16, "step_tokens": 128, "page": 16, "has_adapters": True},
    ),
}


def _launch_logits(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        _launch_all(SHAPES[name], dtype, context=256, sequences=4, step_tokens=256)


def _compute_on(device: Device) -> None:
    """Whatever asks which one it is."""
    from headway.engine.gpu import tuning
    from headway.engine.gpu.steps import runner

    assert runner.this_device is tuning.this_device
    for name, module in list(sys.modules.items()):
        if name.startswith("headway.engine.gpu.") and hasattr(module, "this_device"):
            setattr(module, "this_device", lambda: device)  # noqa: B010


def _leave_out() -> None:
    """Kernels of an earlier commit may lack what the runner imports."""
    for module, names in (
        (inputs, ("join_tables",)),
        (eight_bit, ("RowScaled",)),
        (adapter_kernels, ("Groups", "Matrices", "block_for", "parts_for", "shrink", "expand")),
    ):
        for name in names:
            if not hasattr(module, name):
                setattr(module, name, lambda *_args, **_options: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--on", choices=DEVICES, default="H200")
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    options = parser.parse_args()
    _leave_out()
    _compute_on(DEVICES[options.on])
    compiled = Compiled(DEVICES[options.on])
    failed = {}
    with torch.inference_mode():
        for stage in options.stages:
            compiled.stage = stage
            try:
                STAGES[stage]()
            except Exception as error:  # noqa: BLE001  other kernels, other arguments
                failed[stage] = f"{type(error).__name__}: {error}"
            print(f"{stage}: {len(compiled.programs)} programs", file=sys.stderr, flush=True)
    told = {"triton": triton.__version__, "programs": compiled.told(), "failed": failed}
    options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
