"""Programs saved by `torch.export`, run by torch. It is imported with the first model.

A .pt2 file may carry pickles, which run code when they are read: those are refused.
"""

import json
import os
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import ConfigError
from headway.model import Arrays, Tensor, TensorModel

if TYPE_CHECKING:
    import numpy

_DTYPES = {
    **{f"torch.{name}": name for name in ("float16", "float32", "float64", "bool", "uint8")},
    **{f"torch.int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    "torch.bfloat16": "bfloat16",
}
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch reads it at every load
_loading = threading.Lock()


class ExportedModel(TensorModel):
    """A .pt2 file as it is. It is opened at once: only the file knows its signature.

    Options: `device` (empty: a GPU where there is one), `threads` (of one batch, on the CPU).
    `batch_sizes` is empty, or the one number of rows that the program was exported with.
    """

    inputs: tuple[Tensor, ...] = ()  # type: ignore[misc]  # of this file, not of the class
    outputs: tuple[Tensor, ...] = ()  # type: ignore[misc]

    def __init__(self, path: str | Path, *, device: str = "", threads: int = 1) -> None:
        self._path = Path(path)
        self._torch = torch = import_torch()
        self.device = self._device = choose_device(torch, device)
        self._threads = threads
        program = _open(torch, self._path)
        self.inputs, self.outputs = _signature(program, self._path)
        self.batch_sizes = _fixed_rows(program, self._path)
        self._keys = program.call_spec.out_spec  # how its outputs are nested
        self._program = program
        self._dtypes = [getattr(torch, tensor.dtype) for tensor in self.inputs]

    def load(self) -> None:
        torch = self._torch
        torch.set_num_threads(self._threads)
        program = self._program
        if self._device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self._device)
        self._module = program.module()
        del self._program

    def files(self) -> list[Path]:
        return [self._path]

    def predict(self, batch: "dict[str, numpy.ndarray[Any, Any]]") -> Arrays:
        torch = self._torch
        arguments = [
            torch.as_tensor(batch[tensor.name], dtype=dtype, device=self._device)
            for tensor, dtype in zip(self.inputs, self._dtypes, strict=True)
        ]
        with torch.inference_mode():
            found = torch.utils._pytree.tree_leaves(self._module(*arguments))
        return {
            tensor.name: _array(torch, value)
            for tensor, value in zip(self.outputs, found, strict=True)
        }


def import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigError("this model needs torch: pip install 'headway[torch]'") from error
    return torch


def choose_device(torch: Any, asked: str) -> str:
    if not asked:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=asked)
    except Exception as error:  # torch's own, of many kinds
        raise ConfigError(f"{asked!r} cannot be used: {error}", field="device") from error
    return asked


def _open(torch: Any, path: Path) -> Any:
    _refuse_pickles(path)
    try:
        with _weights_only():
            return torch.export.load(path)
    except Exception as error:  # torch's own, of many kinds: not a program, too new, pickles
        raise ConfigError(f"{path}: torch cannot load it: {error}") from error


@contextmanager
def _weights_only() -> Iterator[None]:
    """torch.export.load itself would fall back to unpickling anything."""
    with _loading:
        before = os.environ.get(_FORCE)
        os.environ[_FORCE] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_FORCE]
            else:
                os.environ[_FORCE] = before


def _refuse_pickles(path: Path) -> None:
    """Refuse constants that are Python objects: torch unpickles those with every setting."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                base = name.rpartition("/")[2]
                is_object = base.startswith(("custom_obj", "opaque_obj"))
                if is_object or (base.endswith("_config.json") and _pickles(archive.read(name))):
                    raise ConfigError(f"{path}: it holds a pickle ({name}); Headway reads none")
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise ConfigError(f"{path} is not saved by torch.export: {error}") from error


def _pickles(config: bytes) -> bool:
    entries = json.loads(config).get("config", {})
    return any(entry.get("use_pickle") for entry in entries.values())


def _signature(program: Any, path: Path) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    takes = program.graph_signature.user_inputs
    gives = program.graph_signature.user_outputs
    names = _output_names(program, len(gives))
    return (
        tuple(_tensor(name, values.get(name), path) for name in takes),
        tuple(
            _tensor(name, values.get(node), path) for name, node in zip(names, gives, strict=True)
        ),
    )


def _output_names(program: Any, count: int) -> Sequence[str]:
    """A dict's keys; else by number."""
    spec = program.call_spec.out_spec
    if spec.type is dict and len(spec.context) == count:
        return [str(key) for key in spec.context]
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


def _tensor(name: str, value: Any, path: Path) -> Tensor:
    dtype = _DTYPES.get(str(getattr(value, "dtype", None)))
    if dtype is None:
        raise ConfigError(f"{path}: {name!r} is not a tensor that Headway can serve")
    shape = tuple(axis if isinstance(axis, int) else -1 for axis in value.shape)
    if not shape:
        raise ConfigError(f"{path}: {name!r} is a scalar; its first axis must be the rows")
    return Tensor(name, dtype, (-1, *shape[1:]))


def _fixed_rows(program: Any, path: Path) -> tuple[int, ...]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    firsts = [values[name].shape[0] for name in program.graph_signature.user_inputs]
    fixed = sorted({first for first in firsts if isinstance(first, int)})
    if len(fixed) > 1:
        raise ConfigError(f"{path}: its inputs have different first axes {fixed}, not rows")
    return tuple(fixed)


def _array(torch: Any, value: Any) -> Any:
    if value.dtype is torch.bfloat16:
        value = value.float()
    return value.cpu().numpy()
