"""ONNX files, run by onnxruntime. It is imported with the first model.

What it runs on is onnxruntime's execution provider, named by the option `device`: `cpu`, `cuda`,
`tensorrt`, `openvino`, `coreml` …, as far as the installed package has them.
"""

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import ConfigError, InvalidInput, called
from headway.model import Arrays, Tensor, TensorModel

if TYPE_CHECKING:
    import numpy

_log = logging.getLogger(__name__)
_CPU = "CPUExecutionProvider"
# What each is called, and the package that has it.
PROVIDERS = {
    "cpu": (_CPU, "onnxruntime"),
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu"),
    "tensorrt": ("TensorrtExecutionProvider", "onnxruntime-gpu"),
    "rocm": ("ROCMExecutionProvider", "onnxruntime-rocm"),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime-openvino"),
    "directml": ("DmlExecutionProvider", "onnxruntime-directml"),
    "coreml": ("CoreMLExecutionProvider", "onnxruntime, on macOS"),
}
_NUMBERED = ("cuda", "tensorrt", "rocm", "directml")  # GPUs, of which there may be several
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    "tensor(string)": "object",
    **{
        f"tensor({sign}int{bits})": f"{sign}int{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


class OnnxModel(TensorModel):
    """An .onnx file as it is. It is opened at once: only the file knows its signature.

    Options: `device` (empty: a CUDA GPU where onnxruntime finds one, else the CPU), `threads` (of
    one batch, on the CPU). `batch_sizes` is empty, or the one number of rows that the file was
    exported with. Where the first axes of its inputs and outputs are fixed and differ, or there are
    none, they are no rows: then it has no batch axis.
    """

    inputs: tuple[Tensor, ...] = ()  # type: ignore[misc]  # of this file, not of the class
    outputs: tuple[Tensor, ...] = ()  # type: ignore[misc]
    writes_inputs = False
    # An exporter writes down what it saw while it traced; onnxruntime computes other shapes all the
    # same, and says `[]` of an output whose shape the file leaves out.
    output_shapes_are_hints = True

    def __init__(self, path: str | Path, *, device: str = "", threads: int = 1) -> None:
        self._path = Path(path)
        self._device_asked = device
        self._threads = threads
        self.device = likely_device(device)  # where it runs; sure once it is loaded
        self._session = open_session(self._path, device="cpu", threads=threads)
        takes, gives = self._session.get_inputs(), self._session.get_outputs()
        self.inputs = tuple(_tensor(each, self._path) for each in takes)
        self.outputs = tuple(_tensor(each, self._path) for each in gives)
        self.batch_sizes: tuple[int, ...] = ()
        self.batch_axis = _has_rows(takes, gives)
        if self.batch_axis:
            self.batch_sizes = tuple(sorted(_fixed_firsts(takes)))
            self.inputs = tuple(_rows_first(each) for each in self.inputs)
            self.outputs = tuple(_rows_first(each) for each in self.outputs)
        self._names = [tensor.name for tensor in self.outputs]
        self._texts = [tensor.name for tensor in self.inputs if tensor.dtype == "object"]

    def load(self) -> None:
        """Runs in the worker: a process that only reads the signature puts nothing on a GPU."""
        asked = self._device_asked
        if _name_of(check_device(asked)[0]) != _CPU:
            self._session = open_session(self._path, device=asked, threads=self._threads)
            self.device = device_of(self._session, asked)

    def files(self) -> list[Path]:
        """The file, and the weights that lie beside it where it is too large for one."""
        return [self._path, *sorted(self._path.parent.glob(f"{self._path.name}[_.]data"))]

    def drop_batch_axis(self) -> None:
        """Serve its shapes as they are in the file, one request a run."""
        takes, gives = self._session.get_inputs(), self._session.get_outputs()
        self.inputs = tuple(_tensor(each, self._path) for each in takes)
        self.outputs = tuple(_tensor(each, self._path) for each in gives)
        self.batch_sizes, self.batch_axis = (), False

    def check_inputs(self, inputs: Arrays) -> None:
        for name in self._texts:
            _texts(name, inputs[name])

    def predict(self, batch: "dict[str, numpy.ndarray[Any, Any]]") -> Arrays:
        if self._texts:
            batch = batch | {name: _texts(name, batch[name]) for name in self._texts}
        return dict(zip(self._names, self._session.run(self._names, batch), strict=True))


def _texts(name: str, array: "numpy.ndarray[Any, Any]") -> "numpy.ndarray[Any, Any]":
    """The texts as `str`: onnxruntime takes `bytes` too, but writes them as Python would,
    `b'12'`."""
    texts = array.copy()
    for index, element in enumerate(array.flat):
        if isinstance(element, bytes):
            try:
                texts.flat[index] = element.decode()
            except UnicodeDecodeError as error:
                raise InvalidInput(f"{called(name)}: a text is not UTF-8: {error}") from error
        elif not isinstance(element, str):
            kind = type(element).__name__
            raise InvalidInput(f"{called(name)}: a text is expected, not a {kind}")
    return texts


def open_session(model: Path | bytes, *, device: str = "", threads: int = 1) -> Any:
    """An onnxruntime session, of a file or of what would be in one. `device`: one of PROVIDERS,
    `cuda:1` for a certain GPU, empty for a CUDA GPU or else the CPU; `threads`: for one batch, on
    the CPU. Raises ConfigError, also where a device that was asked for cannot be had."""
    onnxruntime = _onnxruntime()
    providers = check_device(device)
    if isinstance(model, Path) and not model.is_file():
        raise ConfigError(f"{model}: there is no such file")
    if not (isinstance(threads, int) and threads >= 1):
        raise ConfigError(f"must be a whole number of at least 1, not {threads!r}", field="threads")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; it warns of harmless things on every start
    try:
        session = onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=providers
        )
    except Exception as error:  # its own tree of exceptions: not a model, too new, weights missing
        name = "the network" if isinstance(model, bytes) else model
        raise ConfigError(f"{name}: onnxruntime cannot load it: {error}") from error
    wanted, got = _name_of(providers[0]), session.get_providers()[0]
    if wanted != got:  # it only warns
        what = f"onnxruntime could not start its {wanted}; is there such a device, and its driver?"
        if device:
            raise ConfigError(what, field="device")
        _log.warning("%s The model runs on the CPU.", what)
    return session


def check_device(device: str) -> list[Any]:
    """The providers for it, in onnxruntime's own words. Raises ConfigError."""
    known = _onnxruntime().get_available_providers()
    if not device:
        return _providers("cuda", "") if PROVIDERS["cuda"][0] in known else [_CPU]
    found = re.fullmatch(r"(\w+?)(?::(\d+))?", device)
    name, number = (found[1], found[2] or "") if found else (device, "")
    if name not in PROVIDERS or (number and name not in _NUMBERED):
        raise ConfigError(
            f"{device!r} is not one of {', '.join(PROVIDERS)}; a GPU may have a number: cuda:1",
            field="device",
        )
    provider, package = PROVIDERS[name]
    if provider not in known:
        here = [each for each, (of, _) in PROVIDERS.items() if of in known]
        raise ConfigError(
            f"the onnxruntime that is installed has no {provider}, only {', '.join(here)}; "
            f"{name} comes with {package}",
            field="device",
        )
    return _providers(name, number)


def likely_device(asked: str) -> str:
    """The device that a session will run on, if it can be started."""
    return _device_name(_name_of(check_device(asked)[0]), asked)


def device_of(session: Any, asked: str) -> str:
    """The device that a session runs on: `cpu`, `cuda:0`, `openvino` …"""
    return _device_name(session.get_providers()[0], asked)


def _device_name(first: str, asked: str) -> str:
    name = next((name for name, (of, _) in PROVIDERS.items() if of == first), first)
    if name not in _NUMBERED:
        return name
    return f"{name}:{asked.partition(':')[2] or 0}"


def _providers(name: str, number: str) -> list[Any]:
    """The provider, followed by those that run what it cannot."""
    provider = PROVIDERS[name][0]
    options = {"device_id": number} if number else {}
    found: list[Any] = [(provider, options)]
    if name == "tensorrt":
        found.append((PROVIDERS["cuda"][0], options))
    return found if name == "cpu" else [*found, _CPU]


def _name_of(provider: Any) -> str:
    name: str = provider if isinstance(provider, str) else provider[0]
    return name


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError("ONNX models need onnxruntime: pip install 'headway[onnx]'") from error
    return onnxruntime


def _tensor(node: Any, path: Path) -> Tensor:
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise ConfigError(f"{path}: {node.name!r} is a {node.type}, which Headway cannot serve")
    shape = tuple(axis if isinstance(axis, int) and axis > 0 else -1 for axis in node.shape)
    return Tensor(node.name, dtype, shape)


def _rows_first(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.dtype, (-1, *tensor.shape[1:]))


def _has_rows(takes: Any, gives: Any) -> bool:
    """Whether the first axis can be the rows of a batch: every tensor has one, and sizes that are
    fixed agree. (One that only outputs fix may be that with which the file was traced.)"""
    if not all(node.shape for node in (*takes, *gives)):
        return False
    fixed = _fixed_firsts(takes)
    return len(fixed) < 2 and (not fixed or len(fixed | _fixed_firsts(gives)) == 1)


def _fixed_firsts(nodes: Any) -> set[int]:
    firsts = [node.shape[0] for node in nodes if node.shape]
    return {size for size in firsts if isinstance(size, int) and size > 0}
