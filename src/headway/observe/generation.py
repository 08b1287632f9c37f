"""The figures of one version of a language model: tokens, answers, how long they took.

The names end as vLLM's do, so that its dashboards carry over with one prefix changed.
"""

from collections.abc import Callable
from typing import NamedTuple

from headway.core.generation.sequence import Finished
from headway.observe import families
from headway.observe.exposition import Exposition, MetricFamily, histogram_starts, labels
from headway.observe.histogram import Histogram, bounds
from headway.observe.load import ServerLoad, total
from headway.observe.triton import RequestFigures, TritonCounters

# vLLM's own bounds.
_FIRST = bounds(
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0),
)
_BETWEEN = bounds(
    *(0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0),
)
_WHOLE = bounds(
    *(0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0),
)
_TOKENS = bounds(*(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048))
_REASONS = ("stop", "length", "abort")
_MOST_REASONS = 32
_LATEST = 0.1  # the weight of the latest answer in how long answers take


class GenerationNow(NamedTuple):
    running: int
    waiting: int
    cache_usage: float  # share of the blocks that running sequences hold
    preemptions: int
    max_running: int

    @property
    def share(self) -> float:
        """How much of the engine is in use; all of it as soon as anyone waits."""
        if self.waiting:
            return 1.0
        return min(1.0, max(self.running / self.max_running, self.cache_usage))


class GenerationRecorder:
    """Sums and histograms, added to in one event loop."""

    def __init__(self) -> None:
        self.work_s = 0.0
        self.now: Callable[[], GenerationNow | None] = lambda: None  # set by the model
        self._shared = (0.0, 0.0)  # since when, and how much of the engine is in use
        self.reset()

    def reset(self) -> None:
        """Forget all records so far: a warm-up is not a request."""
        self.first_token = Histogram(_FIRST)
        self.between_tokens = Histogram(_BETWEEN)
        self.whole = Histogram(_WHOLE)
        self.queued = Histogram(_WHOLE)
        self.step_sequences = Histogram(_TOKENS)
        self.prompt_tokens = self.generation_tokens = self.cached_tokens = self.queried_tokens = 0
        self.reasons = dict.fromkeys(_REASONS, 0)
        self._answer_s = 0.0  # how long an answer takes once it runs

    def queue_s(self, now: GenerationNow) -> float:
        """How long the queue takes: an answer's place is free after as long as answers take."""
        return now.waiting * self._answer_s / now.max_running

    def prompt(self, tokens: int) -> None:
        """A sequence is queued."""
        self.queried_tokens += tokens

    def step(self, tokens: int, at: float) -> None:
        since, share = self._shared
        self.work_s += share * (at - since)
        now = self.now()
        self._shared = (at, 0.0 if now is None else now.share)
        if tokens:
            self.generation_tokens += tokens
            self.step_sequences.add(tokens)

    def ended(self, *, seconds: float, queued_s: float, finished: Finished) -> None:
        self.whole.add(seconds)
        self.queued.add(max(0.0, queued_s))
        ran_s = max(0.0, seconds - queued_s)
        self._answer_s += (ran_s - self._answer_s) * (_LATEST if self._answer_s else 1.0)
        self.cached_tokens += finished.cached_tokens

    def finished(self, reason: str) -> None:
        known = reason if reason in self.reasons or len(self.reasons) < _MOST_REASONS else "other"
        self.reasons[known] = self.reasons.get(known, 0) + 1


class GenerationMetrics:
    """The figures of all language models; a source of `Metrics`."""

    def __init__(self) -> None:
        self._models: dict[str, _Watched] = {}  # by its labels
        self._gone_work_s = 0.0

    def watch(
        self,
        name: str,
        version: str,
        recorder: GenerationRecorder,
        now: Callable[[], GenerationNow | None],
        requests: RequestFigures,
    ) -> None:
        """`now` gives None once the model is closed: then it is left out."""
        where = labels(("model", "version"), (name, version))
        if where in self._models:
            self._gone_work_s += self._models[where].recorder.work_s
        self._models[where] = _Watched(name, recorder, now, requests)

    def load(self) -> ServerLoad:
        loads = [ServerLoad(work_s=self._gone_work_s)]
        for watched in list(self._models.values()):
            recorder, now = watched.recorder, watched.now()
            if now is None:
                loads.append(ServerLoad(work_s=recorder.work_s))
                continue
            queue_s = recorder.queue_s(now)
            loads.append(ServerLoad(now.waiting, now.running, queue_s, recorder.work_s))
        return total(loads)

    def add_to(self, page: Exposition) -> None:
        for where, watched in list(self._models.items()):
            now = watched.now()
            if now is None:
                self._gone_work_s += watched.recorder.work_s
                del self._models[where]
                continue
            if not page.shows(watched.name):
                continue
            _add(page, where, watched.recorder, now)
            TritonCounters(watched.requests).add_to(page, where)


class _Watched(NamedTuple):
    name: str
    recorder: GenerationRecorder
    now: Callable[[], GenerationNow | None]
    requests: RequestFigures


def _add(page: Exposition, where: str, recorder: GenerationRecorder, now: GenerationNow) -> None:
    for family, value in (
        (families.QUEUE_SECONDS, recorder.queue_s(now)),
        (families.WORK_SECONDS, recorder.work_s),
        (families.SEQUENCES_RUNNING, now.running),
        (families.SEQUENCES_WAITING, now.waiting),
        (families.KV_CACHE_USAGE, now.cache_usage),
        (families.PREEMPTIONS, now.preemptions),
        (families.PREFIX_QUERIES, recorder.queried_tokens),
        (families.PREFIX_HITS, recorder.cached_tokens),
        (families.PROMPT_TOKENS, recorder.queried_tokens),
        (families.GENERATION_TOKENS, recorder.generation_tokens),
    ):
        page.add(family, where, value)
    for reason, count in recorder.reasons.items():
        page.add(families.SEQUENCES_FINISHED, f'{where},finished_reason="{reason}"', count)
    histograms: tuple[tuple[MetricFamily, Histogram], ...] = (
        (families.FIRST_TOKEN, recorder.first_token),
        (families.BETWEEN_TOKENS, recorder.between_tokens),
        (families.SEQUENCE_SECONDS, recorder.whole),
        (families.SEQUENCE_QUEUED, recorder.queued),
        (families.STEP_SEQUENCES, recorder.step_sequences),
    )
    for family, histogram in histograms:
        page.add_histogram(family, histogram_starts(family, where, histogram.bounds), histogram)
