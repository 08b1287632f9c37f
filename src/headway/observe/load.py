"""The load of the process in a few figures without labels, for load balancers and autoscalers.
Cheap: a load balancer asks many times a second."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headway.core.lifecycle.scaling import LOADING_WORK, WorkRate
from headway.core.routing import Pace
from headway.observe import families
from headway.observe.exposition import Exposition

ORCA_ASKED = "endpoint-load-metrics-format"
ORCA = "endpoint-load-metrics"
_FRESH_S = 0.010  # a reading serves for so long


class ServerLoad(NamedTuple):
    """Of one model, or the sum over several."""

    queued_requests: int = 0
    running_requests: int = 0
    queue_s: float = 0.0  # until its workers have done all that waits
    work_s: float = 0.0  # that its workers have done, each


class LoadReading(NamedTuple):
    load: ServerLoad
    utilization: float  # work a second, lately; 1: the replica can do no more


def total(loads: Iterable[ServerLoad]) -> ServerLoad:
    queued, running, queue_s, work_s = 0, 0, 0.0, 0.0
    for load in loads:
        queued += load.queued_requests
        running += load.running_requests
        queue_s += load.queue_s
        work_s += load.work_s
    return ServerLoad(queued, running, queue_s, work_s)


class LoadSignals:
    """Sums its sources when it is asked, from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_loading: Callable[[], bool] = lambda: False  # a replica that cannot serve yet
        self._sources: list[Callable[[], ServerLoad]] = []
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = WorkRate()
        self._loading_s, self._loading_since = 0.0, clock()
        self._was_loading = True  # a process that starts
        self._reading, self._read_at = LoadReading(ServerLoad(), 0.0), float("-inf")

    def add_source(self, source: Callable[[], ServerLoad]) -> None:
        self._sources.append(source)

    def read(self) -> LoadReading:
        with self._lock:
            now = self._clock()
            if now - self._read_at >= _FRESH_S:
                load = total(source() for source in self._sources)
                load = load._replace(work_s=load.work_s + LOADING_WORK * self._loaded_s(now))
                self._reading = LoadReading(load, self._rate.read(now, load.work_s))
                self._read_at = now
            return self._reading

    def _loaded_s(self, now: float) -> float:
        """The seconds of loading so far, between readings that both found it loading."""
        is_loading = self.is_loading()
        if is_loading and self._was_loading:
            self._loading_s += now - self._loading_since
        self._was_loading, self._loading_since = is_loading, now
        return self._loading_s

    def add_to(self, page: Exposition) -> None:
        load, utilization = self.read()
        page.add(families.LOAD_QUEUED, "", load.queued_requests)
        page.add(families.LOAD_RUNNING, "", load.running_requests)
        page.add(families.LOAD_QUEUE_SECONDS, "", load.queue_s)
        page.add(families.LOAD_WORK_SECONDS, "", load.work_s)
        page.add(families.LOAD_UTILIZATION, "", utilization)

    def orca(self, form: str, pace: Pace | None = None) -> str | None:
        """The header with these figures, as Envoy, Triton and vLLM write it; None: an unknown
        form. `pace`: of the model that answers."""
        load, utilization = self.read()
        named: dict[str, float] = {
            "queue_seconds": round(load.queue_s, 6),
            "queued_requests": load.queued_requests,
            "running_requests": load.running_requests,
        }
        if pace is not None:
            named["batch_seconds"] = round(pace.batch_s, 6)
            named["more_seconds"] = round(pace.more_s, 9)
            named["batch_rows"] = pace.most
        used = round(utilization, 4)
        if form.strip().upper() == "JSON":
            figures = {"application_utilization": used, "named_metrics": named}
            return f"JSON {json.dumps(figures)}"
        if form.strip().upper() == "TEXT":
            texts = (f"named_metrics.{name}={value}" for name, value in named.items())
            return f"TEXT application_utilization={used}, {', '.join(texts)}"
        return None
