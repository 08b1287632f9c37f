"""`Metrics`: what a process's batchers do, as a page for Prometheus.

Everything is recorded in the batchers' process, wherever their models run. So one page is whole,
and the pages of several front ends add up: they hold sums and histograms, no percentiles.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from headway.core.items import Priority
from headway.core.routing import Pace
from headway.observe import families
from headway.observe.exposition import (
    OPENMETRICS,
    TEXT,
    Exposition,
    MetricFamily,
    histogram_starts,
    labels,
    wants_openmetrics,
)
from headway.observe.histogram import Histogram
from headway.observe.load import LoadSignals, ServerLoad, total
from headway.observe.process import add_process
from headway.observe.recorder import MetricsRecorder
from headway.observe.triton import RequestFigures, TritonCounters
from headway.runtime.events import Event, ObservedBatcher, Stopped

_MOST_RETIRED = 16  # versions that were unloaded and may return; of more, the oldest is forgotten


@dataclass(frozen=True, slots=True)
class VersionReadiness:
    """The readiness of one version that is served, or will be."""

    model: str
    version: str
    is_ready: bool


class Key(NamedTuple):
    model: str
    version: str


Source: TypeAlias = Callable[[Exposition], None]
Scope: TypeAlias = MutableMapping[str, Any]


class Metrics:
    """Watches batchers; `text()` is their metrics. Itself an ASGI application, to be mounted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[Key, _Model] = {}
        self._retired: OrderedDict[Key, _Model] = OrderedDict()
        self._sources: list[Source] = [add_process]
        self._forgotten_work_s = 0.0  # of versions that are forgotten: a sum never falls
        self.load = LoadSignals()
        self.load.add_source(self._load)
        # Set where models are kept: batchers do not know of models that could not be loaded.
        self.readiness: Callable[[], Iterable[VersionReadiness]] | None = None

    # ---- what is watched

    def watch(
        self, batched: Any, *, version: str = "1", requests: RequestFigures | None = None
    ) -> None:
        """Record what this `Batcher` or `@batched` function does from now on, until it closes.

        Several of one name and version are summed. `requests`: a server's own count of requests,
        for Triton's names.
        """
        batcher: ObservedBatcher = getattr(batched, "batcher", batched)
        key = Key(batcher.name, version)
        with self._lock:
            self._forget_lost()
            model = self._models.get(key) or self._retired.pop(key, None) or _Model(key)
            self._models[key] = model
            watch = _Watch(model, batcher, requests, self._stopped)
            model.watches.append(watch)
            model.configure()
        batcher.observe(watch.observe)

    def add_source(self, source: Source) -> None:
        """Ask this source, too, for every page."""
        self._sources.append(source)

    def pace_of(self, model: str) -> Pace | None:
        """How long the model's batches take; None: unknown."""
        with self._lock:
            found = [each for key, each in self._models.items() if key.model == model]
        paces = [each.statistics().pace for watched in found for each in watched.batchers()]
        return next(filter(None, paces), None)

    def _stopped(self, watch: "_Watch") -> None:
        with self._lock:
            self._retire(watch)

    def _forget_lost(self) -> None:
        """Forget batchers that were dropped without being closed."""
        watches = [watch for model in self._models.values() for watch in model.watches]
        for watch in watches:
            if watch.batcher is None:
                self._retire(watch)

    def _retire(self, watch: "_Watch") -> None:
        model = watch.model
        if watch not in model.watches:
            return
        model.watches.remove(watch)
        model.let_go(watch.requests)
        if not model.watches:
            del self._models[model.key]
            self._retired[model.key] = model
            if len(self._retired) > _MOST_RETIRED:
                _, forgotten = self._retired.popitem(last=False)
                self._forgotten_work_s += forgotten.recorder.load_s

    def _load(self) -> ServerLoad:
        with self._lock:
            models = [*self._models.values(), *self._retired.values()]
            before = ServerLoad(work_s=self._forgotten_work_s)
        return total([before, *[model.load() for model in models]])

    # ---- the page

    def text(self, *, openmetrics: bool = False) -> str:
        """The page in Prometheus' text format, or OpenMetrics."""
        page = Exposition()
        for _ in self.fill(page):
            pass
        return page.text(openmetrics=openmetrics)

    def fill(self, page: Exposition) -> Iterator[None]:
        """Fill the page model by model: if there are many, the event loop has a turn in between."""
        with self._lock:
            self._forget_lost()
            known = [*self._models.values(), *self._retired.values()]
        models = [model for model in known if page.shows(model.key.model)]
        for model in models:
            model.add_to(page)
            yield
        ready = {} if self.readiness is None else _by_key(self.readiness())
        for model in models:
            if self.readiness is None and model.is_open is not None:
                ready[model.key] = model.is_open
        for key, is_ready in ready.items():
            if page.shows(key.model):
                page.add(families.MODEL_READY, labels(key._fields, key), int(is_ready))
        for source in self._sources:
            source(page)
            yield
        if page.shows_all:
            self.load.add_to(page)

    async def __call__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """The page as an ASGI application: `app.mount("/metrics", metrics)`."""
        assert scope["type"] == "http", "metrics are served over HTTP"
        accept = b"".join(value for name, value in scope["headers"] if name == b"accept")
        openmetrics = wants_openmetrics(accept.decode("latin-1"))
        body = self.text(openmetrics=openmetrics).encode()
        content_type = (OPENMETRICS if openmetrics else TEXT).encode()
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _by_key(found: Iterable[VersionReadiness]) -> dict[Key, bool]:
    return {Key(each.model, each.version): each.is_ready for each in found}


class _Watch:
    """A batcher that is watched. The batcher holds this object, not the other way round."""

    def __init__(
        self,
        model: "_Model",
        batcher: ObservedBatcher,
        requests: RequestFigures | None,
        stopped: "Callable[[_Watch], None]",
    ) -> None:
        self.model = model
        self.requests = requests
        self._record = model.recorder.observe
        self._stopped = stopped
        self._batcher = weakref.ref(batcher)

    def observe(self, event: Event) -> None:
        self._record(event)
        if isinstance(event, Stopped):
            self._stopped(self)

    @property
    def batcher(self) -> ObservedBatcher | None:
        return self._batcher()


class _Model:
    """A version of a model: its metrics, and their recorder."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.recorder = MetricsRecorder()
        self.watches: list[_Watch] = []  # one for each batcher that has not closed
        self._gone = TritonCounters()  # requests of batchers that have closed
        self._closing: RequestFigures | None = None  # the last of them: some are still recorded
        self._where = labels(key._fields, key)
        self._starts: dict[tuple[MetricFamily, str], tuple[str, ...]] = {}

    def let_go(self, requests: RequestFigures | None) -> None:
        if self._closing is not None:
            self._gone.add(self._closing)
        self._closing = requests

    def configure(self) -> None:
        """Take settings from the latest batcher's policy: its tenants may have changed."""
        latest = self.watches[-1].batcher if self.watches else None
        if latest is not None:
            policy = latest.policy
            self.recorder.configure(
                slo_s=policy.slo_s, tenants=policy.tenant_weights, workers=policy.workers
            )

    def add_to(self, page: Exposition) -> None:
        self.configure()
        with self.recorder.lock:
            self._add_recorded(page, self.recorder)
        self._add_now(page)
        self._add_requests(page)

    def _add_recorded(self, page: Exposition, recorder: MetricsRecorder) -> None:
        where, has_batchers = self._where, bool(self.watches)
        for priority, times in zip(Priority, recorder.times, strict=True):
            if times is None:
                continue
            labelled = f'{where},priority="{priority.name.lower()}"'
            self._add_histogram(page, families.ITEM_QUEUE, labelled, times.queued)
            self._add_histogram(page, families.ITEM_LINGER, labelled, times.lingered)
            self._add_histogram(page, families.ITEM_EXECUTE, labelled, times.executed)
            self._add_histogram(page, families.ITEM_END_TO_END, labelled, times.end_to_end)
        page.add(families.ITEMS_FAILED, where, recorder.failed)
        self._add_each(page, families.ITEMS_REFUSED, recorder.refused)
        by_started = {"false": recorder.cancelled_queued, "true": recorder.cancelled_started}
        self._add_each(page, families.ITEMS_CANCELLED, by_started)
        self._add_each(page, families.TENANT_ROWS, recorder.tenant_rows)
        for reason, histogram in recorder.batch_rows.items():
            self._add_histogram(page, families.BATCH_ROWS, f'{where},reason="{reason}"', histogram)
        self._add_histogram(page, families.BATCH_PADDING, where, recorder.padding)
        page.add(families.WORK_SECONDS, where, recorder.work_s)
        page.add(families.BATCH_RERUNS, where, recorder.reruns)
        page.add(families.BATCHES_LOST, where, recorder.lost)
        page.add(families.OUT_OF_MEMORY, where, recorder.out_of_memory)
        page.add(families.WORKER_RESTARTS, where, recorder.restarts)
        page.add(families.CRASHES, where, recorder.crashes)
        if has_batchers:
            page.add(families.BATCH_CAP, where, recorder.batch_cap_rows)
            page.add(families.LINGER_CAP, where, recorder.linger_cap_s)
        if recorder.slo_s is not None:
            if has_batchers:
                page.add(families.SLO_SECONDS, where, recorder.slo_s)
            outcomes = {
                "in_time": recorder.in_time,
                "late": recorder.late,
                "refused": recorder.refused_by_slo,
            }
            self._add_each(page, families.SLO_ITEMS, outcomes)

    def _add_each(
        self, page: Exposition, family: MetricFamily, values: Mapping[str, float]
    ) -> None:
        label = family.labels[-1]
        for name, value in values.items():
            page.add(family, f"{self._where},{labels((label,), (name,))}", value)

    def _add_histogram(
        self, page: Exposition, family: MetricFamily, labelled: str, histogram: Histogram
    ) -> None:
        starts = self._starts.get((family, labelled))
        if starts is None:
            starts = histogram_starts(family, labelled, histogram.bounds)
            self._starts[family, labelled] = starts
        page.add_histogram(family, starts, histogram)

    @property
    def is_open(self) -> bool | None:
        """Does any batcher take calls? None: there is none."""
        batchers = self.batchers()
        return any(each.statistics().is_open for each in batchers) if batchers else None

    def load(self) -> ServerLoad:
        states = [each.statistics() for each in self.batchers()]
        return ServerLoad(
            sum(now.queued_items for now in states),
            sum(now.running_items for now in states),
            sum(now.queued_s for now in states),
            self.recorder.load_s,
        )

    def batchers(self) -> list[ObservedBatcher]:
        return [each for watch in self.watches if (each := watch.batcher) is not None]

    def _add_now(self, page: Exposition) -> None:
        where = self._where
        batchers = self.batchers()
        states = [(batcher.statistics(), batcher.policy.workers) for batcher in batchers]
        if not states:
            return  # its sums stay a while; there is no now
        busy = sum(now.running_batches for now, _ in states)
        workers = sum(workers for now, workers in states if now.is_open)
        page.add(families.QUEUE_ROWS, where, sum(now.queued_rows for now, _ in states))
        page.add(families.QUEUE_SECONDS, where, sum(now.queued_s for now, _ in states))
        away = sum(now.away_workers for now, _ in states)
        idle = max(0, workers - busy - away)
        self._add_each(page, families.WORKERS, {"busy": busy, "idle": idle, "away": away})
        page.add(families.OLDEST_BATCH, where, max(now.oldest_batch_s for now, _ in states))
        page.add(families.NV_PENDING, where, sum(now.queued_items for now, _ in states))

    def _add_requests(self, page: Exposition) -> None:
        figures = [self._closing, *(watch.requests for watch in self.watches)]
        counted = [each for each in figures if each is not None]
        if counted:
            TritonCounters(self._gone, *counted).add_to(page, self._where)
