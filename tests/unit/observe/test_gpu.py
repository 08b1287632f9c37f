"""GPUs as NVML tells of them: the real library where there is a driver, and a fake that behaves
like it where there is none."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import parser

from headway.observe.exposition import Exposition
from headway.observe.gpu import Gpus


class NVMLError(Exception):
    pass


class FakeNvml:
    """Two GPUs; the second does not tell its power, as laptops do."""

    NVMLError = NVMLError

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=25, memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 * 2**30, used=2**30)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise NVMLError("Not Supported")
        return 81_332

    nvmlDeviceGetEnforcedPowerLimit = nvmlDeviceGetPowerUsage
    nvmlDeviceGetTotalEnergyConsumption = nvmlDeviceGetPowerUsage


def test_every_gpu_is_told_of_with_what_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    page = Exposition()
    Gpus().add(page)
    text = page.text()
    # As perf_analyzer reads it: this label alone, and no exponent.
    assert '\nnv_gpu_utilization{gpu_uuid="GPU-0"} 0.25\n' in text
    assert '\nnv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 85899345920\n' in text
    assert '\nnv_gpu_power_usage{gpu_uuid="GPU-0"} 81.332\n' in text
    assert 'nv_gpu_power_usage{gpu_uuid="GPU-1"}' not in text


class FakeWithoutDriver(FakeNvml):
    def nvmlInit(self) -> None:
        raise NVMLError("Driver Not Loaded")


@pytest.mark.parametrize("library", [None, FakeWithoutDriver()], ids=["no library", "no driver"])
def test_without_library_or_driver_there_are_none(
    library: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert not Gpus()


def test_the_real_library_is_asked_as_it_wants_to_be() -> None:
    pytest.importorskip("pynvml")
    gpus, page = Gpus(), Exposition()
    if not gpus:
        pytest.skip("there is no GPU here")
    gpus.add(page)
    found = {each.name for each in parser.text_string_to_metric_families(page.text())}
    assert {"nv_gpu_utilization", "nv_gpu_memory_total_bytes"} <= found
