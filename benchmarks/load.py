"""Loads for benchmarks, with the generator of `headway bench`: closed loops, and Poisson arrivals
of one stream of requests or of several at once.

Latency counts from the moment a request was due; every answer is checked by a mark of its own.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from headway.loadgen import exchange
from headway.loadgen.connection import opener
from headway.loadgen.driver import Driver
from headway.loadgen.exchange import Address, AskedRequest
from headway.loadgen.samples import Samples

__all__ = ["AskedRequest", "Generator", "Load", "post"]


@dataclass(frozen=True, slots=True)
class Load:
    seconds: float
    latencies_s: NDArray[numpy.float64]
    finished_at: NDArray[numpy.float64]  # since the start
    is_ok: NDArray[numpy.bool_]  # its own answer, with a 200
    unanswered: int  # when the time was up

    @property
    def failed(self) -> int:
        """Another status, another request's answer, or none."""
        return int((~self.is_ok).sum())

    @property
    def per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def per_s_after(self, skipped_s: float) -> float:
        """Once all is under way. (What was under way when the time was up is not counted, and so
        must not be the time in which nothing could be answered yet.)"""
        return float((self.finished_at >= skipped_s).sum()) / (self.seconds - skipped_s)

    def percentile_ms(self, q: float) -> float:
        return float(numpy.percentile(self.latencies_s, q)) * 1e3 if len(self.latencies_s) else 0.0

    def steady_p99_ms(self, window_s: float = 1.0) -> float:
        """Of the median second, or longer window: one stolen moment of a shared machine is not the
        server's."""
        windows = (self.finished_at / window_s).astype(int)
        each = [
            float(numpy.percentile(self.latencies_s[windows == window], 99))
            for window in range(int(self.seconds / window_s))
            if (windows == window).any()
        ]
        return float(numpy.median(each)) * 1e3 if each else float("inf")


def post(path: str, body: bytes, mark: bytes) -> AskedRequest:
    return exchange.post(Address("127.0.0.1", 80), path, body, mark)


class Generator:
    """Requests to one server. `closed` and `poisson` may be called one after the other."""

    def __init__(self, port: int, exchanges: Sequence[AskedRequest]) -> None:
        self._connect = opener(Address("127.0.0.1", port))
        self._exchanges = exchanges
        self.last_failure = ""  # its kind

    def one_ms(self) -> float:
        """One request on a connection of its own."""
        with Driver(self._connect, self._exchanges) as driver:
            return self._load(driver.open_loop(numpy.zeros(1)), 1.0).percentile_ms(50)

    def closed(self, connections: int, seconds: float) -> Load:
        """Every connection sends its next request when it has its answer."""
        with Driver(self._connect, self._exchanges) as driver:
            return self._load(driver.closed_loop(connections, seconds), seconds)

    def poisson(self, rate: float, seconds: float, *, seed: int = 1) -> Load:
        """Requests leave when they are due, on a free connection or a new one."""
        return self.mixed([(rate, self._exchanges)], seconds, seed=seed)[0]

    def mixed(
        self,
        streams: Sequence[tuple[float, Sequence[AskedRequest]]],
        seconds: float,
        *,
        seed: int = 1,
    ) -> list[Load]:
        """Several open-loop streams at once, each with its rate and its requests."""
        rng = numpy.random.default_rng(seed)
        drawn = [rng.uniform(0.0, seconds, rng.poisson(rate * seconds)) for rate, _ in streams]
        due = numpy.concatenate(drawn)
        order = numpy.argsort(due, kind="stable")
        stream = numpy.repeat(numpy.arange(len(streams)), [len(each) for each in drawn])[order]
        turns = [itertools.cycle(exchanges) for _, exchanges in streams]
        asked = [next(turns[number]) for number in stream.tolist()]
        with Driver(self._connect, asked) as driver:
            samples = driver.open_loop(due[order], last_s=2 * seconds + 1)
        return [self._load(samples, seconds, stream == each) for each in range(len(streams))]

    def _load(
        self, samples: Samples, seconds: float, chosen: NDArray[numpy.bool_] | bool = True
    ) -> Load:
        self.last_failure = next(iter(samples.errors), self.last_failure)
        ended = chosen & numpy.isfinite(samples.done_s)
        return Load(
            seconds,
            (samples.done_s - samples.due_s)[ended],
            samples.done_s[ended],
            samples.is_ok[ended],
            int((chosen & numpy.isinf(samples.done_s)).sum()),
        )
