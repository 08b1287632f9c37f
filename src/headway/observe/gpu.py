"""NVIDIA GPUs through NVML, where there is a driver and `pip install 'headway[gpu]'`."""

import functools
import logging
from typing import Any

from headway.observe import families
from headway.observe.exposition import Exposition, MetricFamily, labels

_log = logging.getLogger(__name__)


class Gpus:
    """The GPUs of this machine. Values that one of them does not report are left out."""

    def __init__(self) -> None:
        self._nvml = _open()
        self._handles: list[tuple[str, Any]] = []
        if self._nvml is not None:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
                self._handles.append((labels(("gpu_uuid",), (uuid,)), handle))

    def __bool__(self) -> bool:
        return bool(self._handles)

    def add(self, page: Exposition) -> None:
        nvml = self._nvml
        for where, handle in self._handles:
            ask = functools.partial(self._add, page, where)
            rates = self._asked(nvml.nvmlDeviceGetUtilizationRates, handle)
            memory = self._asked(nvml.nvmlDeviceGetMemoryInfo, handle)
            ask(families.GPU_UTILIZATION, None if rates is None else rates.gpu / 100)
            ask(families.GPU_MEMORY_TOTAL, None if memory is None else memory.total)
            ask(families.GPU_MEMORY_USED, None if memory is None else memory.used)
            for family, function in (
                (families.GPU_POWER, nvml.nvmlDeviceGetPowerUsage),
                (families.GPU_POWER_LIMIT, nvml.nvmlDeviceGetEnforcedPowerLimit),
                (families.GPU_ENERGY, nvml.nvmlDeviceGetTotalEnergyConsumption),
            ):
                thousandths = self._asked(function, handle)
                ask(family, None if thousandths is None else thousandths / 1000)

    def _asked(self, function: Any, handle: Any) -> Any:
        try:
            return function(handle)
        except self._nvml.NVMLError:
            return None

    def _add(self, page: Exposition, where: str, family: MetricFamily, value: float | None) -> None:
        if value is not None:
            page.add(family, where, value)


def _open() -> Any:
    """The library; None without a library, a driver or permission: a server without a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.debug("no GPU metrics: %s", error)
        return None
    return pynvml
