"""What onnxruntime runs on. No GPU is at hand here: a stand-in says which providers there are, and
which of them start; the CPU is the real one."""

import logging
from pathlib import Path
from typing import Any

import pytest

from headway import ConfigError
from headway.backends.onnx import OnnxModel, device_of, open_session

onnxruntime = pytest.importorskip("onnxruntime")

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TENSORRT, OPENVINO = "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
REAL = onnxruntime.InferenceSession


def file() -> Path:
    from onnxruntime.datasets import get_example

    return Path(get_example("sigmoid.onnx"))


class Session:
    """Runs on the CPU, and says that it runs on what was asked for, as far as that starts."""

    start = (CPU,)
    asked: Any = None

    def __init__(self, model: str, options: Any, providers: list[Any]) -> None:
        type(self).asked = providers
        self._real = REAL(model, options, providers=[CPU])
        names = [each if isinstance(each, str) else each[0] for each in providers]
        self._providers = [name for name in names if name in self.start]

    def get_providers(self) -> list[str]:
        return self._providers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*providers: str, start: tuple[str, ...] | None = None) -> type[Session]:
        kind = type("Installed", (Session,), {"start": start or providers})
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*providers])
        monkeypatch.setattr(onnxruntime, "InferenceSession", kind)
        return kind

    return install


@pytest.mark.parametrize(
    ("here", "asked", "device", "first"),
    [
        ((CPU,), "", "cpu", CPU),
        ((CPU,), "cpu", "cpu", (CPU, {})),
        ((CUDA, CPU), "", "cuda:0", (CUDA, {})),
        ((CUDA, CPU), "cpu", "cpu", (CPU, {})),
        ((CUDA, CPU), "cuda:1", "cuda:1", (CUDA, {"device_id": "1"})),
        ((TENSORRT, CUDA, CPU), "", "cuda:0", (CUDA, {})),  # engines take minutes: only if asked
        ((TENSORRT, CUDA, CPU), "tensorrt", "tensorrt:0", (TENSORRT, {})),
        ((OPENVINO, CPU), "", "cpu", CPU),
        ((OPENVINO, CPU), "openvino", "openvino", (OPENVINO, {})),
    ],
)
def test_a_device_by_name_or_by_default(
    install: Any, here: tuple[str, ...], asked: str, device: str, first: Any
) -> None:
    sessions = install(*here)
    model = OnnxModel(file(), device=asked)
    assert model.device == device
    assert sessions.asked == [(CPU, {})]  # the signature is read without a GPU
    model.load()
    assert model.device == device
    if device != "cpu":
        assert sessions.asked[0] == first
        assert sessions.asked[-1] == CPU  # for what the device cannot run
    assert device_of(open_session(file(), device=asked), asked) == device


def test_tensorrt_leaves_to_cuda_what_it_cannot_run(install: Any) -> None:
    sessions = install(TENSORRT, CUDA, CPU)
    open_session(file(), device="tensorrt:1")
    assert sessions.asked == [(TENSORRT, {"device_id": "1"}), (CUDA, {"device_id": "1"}), CPU]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gpu", "device: 'gpu' is not one of cpu, cuda"),
        ("cpu:1", "device: 'cpu:1' is not one of"),
        ("cuda:x", "device: 'cuda:x' is not one of"),
        (
            "cuda",
            "the onnxruntime that is installed has no CUDAExecutionProvider, only cpu",
        ),
        ("openvino", "openvino comes with onnxruntime-openvino"),
    ],
)
def test_a_device_that_is_not_here_is_refused_with_the_way_to_it(
    install: Any, asked: str, said: str
) -> None:
    install(CPU)
    with pytest.raises(ConfigError, match=said):
        OnnxModel(file(), device=asked)


def test_a_device_that_does_not_start_is_an_error_if_it_was_asked_for(
    install: Any, caplog: pytest.LogCaptureFixture
) -> None:
    install(CUDA, CPU, start=(CPU,))
    with pytest.raises(ConfigError, match="device: onnxruntime could not start its CUDA"):
        OnnxModel(file(), device="cuda").load()
    model = OnnxModel(file())
    with caplog.at_level(logging.WARNING):
        model.load()
    assert model.device == "cpu"
    assert "runs on the CPU" in caplog.text


def test_the_real_onnxruntime_has_the_cpu() -> None:
    model = OnnxModel(file(), device="cpu")
    model.load()
    assert model.device == "cpu"
