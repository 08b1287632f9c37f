"""Sends requests when they are due and records what comes back: one thread, one event loop.

Latency counts from the moment a request was *due*, so a server that stalls cannot hide its queue,
and neither can a limit on what is in flight.
"""

import gc
import heapq
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from headway.lab.workload import Times
from headway.loadgen.connection import WRITE, LoadConnection, LostServer, Poller
from headway.loadgen.exchange import AskedRequest
from headway.loadgen.room import RoomMeter
from headway.loadgen.samples import CANCELLED, UNANSWERED, Samples, Sent
from headway.loadgen.tokens import TokenLog

MAX_IN_FLIGHT = 1000  # connections; servers have limits
_READY = 32  # connections that are opened before the first request is due
_TICK_S = 0.25
_PATIENCE_S = 0.010  # of clients that leave, on average


class Tick(NamedTuple):
    """How far a run has come."""

    elapsed_s: float
    answered: int
    failed: int
    in_flight: int  # due and not answered


class Driver:
    """Drives one server. Runs of `open_loop` and `closed_loop` may follow each other."""

    def __init__(
        self,
        connect: Callable[[], LoadConnection],
        exchanges: Sequence[AskedRequest],
        *,
        timeout_s: float = 30.0,
        max_in_flight: int = MAX_IN_FLIGHT,
        on_tick: Callable[[Tick], object] | None = None,
        cancelled: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`cancelled`: the share of requests whose client leaves before it has its answer."""
        self._connect = connect
        self._exchanges = exchanges
        self._timeout_s = timeout_s
        self._max_in_flight = max_in_flight
        self._on_tick = on_tick
        self._poller = Poller()
        self._connections: dict[int, LoadConnection] = {}
        self._free: deque[LoadConnection] = deque()
        self._turn = 0
        self._cancelled = cancelled
        self._rng = random.Random(seed)
        self._leaving: list[tuple[float, int, LoadConnection]] = []  # a heap, by time

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()
        self._poller.close()

    def try_once(self) -> None:
        """Send one request before the load. Raises LostServer if its fault would be all others'."""
        cancelled, self._cancelled = self._cancelled, 0.0
        errors = self.open_loop(np.zeros(1)).errors
        self._cancelled = cancelled
        for kind in errors:
            if kind == UNANSWERED or (kind[:1] != "5" and not kind.startswith("429")):
                raise LostServer(f"the first request failed: {kind}")

    def open_loop(
        self,
        due: Times,
        *,
        last_s: float | None = None,
        stop_when: Callable[[Tick], bool] | None = None,
    ) -> Samples:
        """Requests leave when they are due (seconds from now, ascending), on a free connection or
        a new one. What is unanswered at `last_s` (absent: the last due moment and the timeout)
        stays unanswered."""
        times: deque[float] = deque(due.tolist())
        give_up_s = times[-1] + self._timeout_s if last_s is None else last_s
        with suppress(LostServer):  # each request then says so
            for _ in range(min(_READY, len(times), self._max_in_flight)):
                self._free.append(self._open())
            for each in self._free:
                each.shake_hands()
        with self._measured() as sent:
            start = sent.room.started_at
            next_tick = start + _TICK_S
            while (times or sent.in_flight) and (now := time.perf_counter()) - start < give_up_s:
                self._send_due(sent, times, start, now)
                if now >= next_tick:
                    next_tick += _TICK_S
                    tick = self._tick(sent, start, now, times)
                    if stop_when is not None and stop_when(tick):
                        break
                has_place = bool(self._free) or sent.in_flight < self._max_in_flight
                next_due = start + times[0] if times and has_place else math.inf
                self._poll(sent, min(next_tick, next_due), again=False)
            for each in self._under_way():
                self._fail(sent, each, UNANSWERED, math.inf)
            for at in times:
                sent.fail(start + at, UNANSWERED, math.inf)
            return sent.samples(start, self._poller.idle_s)

    def closed_loop(self, connections: int, seconds: float) -> Samples:
        """Each connection sends its next request as soon as it has its answer."""
        with self._measured() as sent:
            start = sent.room.started_at
            end, next_tick = start + seconds, start + _TICK_S
            for _ in range(connections):
                self._send_anew(sent, time.perf_counter())
            while (now := time.perf_counter()) < end:
                if now >= next_tick:
                    next_tick += _TICK_S
                    self._tick(sent, start, now)
                    for _ in range(connections - sent.in_flight):  # in place of those that failed
                        self._send_anew(sent, time.perf_counter())
                self._poll(sent, min(end, next_tick), again=True)
            return sent.samples(start, self._poller.idle_s)

    @contextmanager
    def _measured(self) -> Iterator[Sent]:
        gc.collect()
        gc.disable()  # a collection would make requests late; nothing here makes cycles
        self._poller.idle_s = 0.0
        try:
            are_streams = any(each.is_stream for each in self._exchanges)
            yield Sent(RoomMeter(), TokenLog() if are_streams else None)
        finally:
            gc.enable()
            self._hang_up()

    # ---- sending

    def _send_due(self, sent: Sent, times: deque[float], start: float, now: float) -> None:
        free = self._free
        while times and start + times[0] <= now:
            while free and free[0].fileno() < 0:  # the server has closed it meanwhile
                free.popleft()
            if free:
                self._send(sent, free.popleft(), start + times.popleft())
            elif sent.in_flight < self._max_in_flight:
                self._send_anew(sent, start + times.popleft())
            else:
                return  # it leaves late, and its latency says so

    def _send_anew(self, sent: Sent, due: float) -> None:
        """On a new connection."""
        try:
            connection = self._open()
        except LostServer as error:
            sent.fail(due, str(error), time.perf_counter())
        else:
            self._send(sent, connection, due)

    def _send(self, sent: Sent, connection: LoadConnection, due: float) -> None:
        number = self._turn % len(self._exchanges)
        exchange = self._exchanges[number]
        self._turn += 1
        now = time.perf_counter()
        connection.number = number
        connection.due = due
        connection.late = now - max(due, connection.free_since)
        connection.is_busy = True
        connection.leaves = 0
        connection.arrived = [] if exchange.is_stream else None
        connection.token = exchange.token
        sent.in_flight += 1
        if self._cancelled and self._rng.random() < self._cancelled:
            leaves_at = now + self._rng.expovariate(1.0 / _PATIENCE_S)
            heapq.heappush(self._leaving, (leaves_at, self._turn, connection))
            connection.leaves = self._turn
        try:
            if not connection.send(exchange.request):
                self._poller.want_write(connection, wanted=not connection.must_read)
        except LostServer as error:
            self._fail(sent, connection, str(error), now)

    def _open(self) -> LoadConnection:
        connection = self._connect()
        self._connections[connection.fileno()] = connection
        self._poller.add(connection)
        return connection

    # ---- receiving

    def _leave(self, sent: Sent, now: float, *, again: bool) -> None:
        """Close the connections of clients that leave before their answer."""
        while self._leaving and self._leaving[0][0] <= now:
            _, turn, connection = heapq.heappop(self._leaving)
            if connection.is_busy and connection.leaves == turn:
                self._fail(sent, connection, CANCELLED, now)
                if again:
                    self._send_anew(sent, now)

    def _poll(self, sent: Sent, until: float, *, again: bool) -> None:
        """Take what comes until then. `again`: a connection that is answered sends at once."""
        connections = self._connections
        if self._leaving:
            self._leave(sent, time.perf_counter(), again=again)
            until = min(until, self._leaving[0][0]) if self._leaving else until
        for descriptor, mask in self._poller.poll(until - time.perf_counter()):
            connection = connections[descriptor]
            try:
                if connection.is_writing and (mask & WRITE or connection.must_read):
                    wanted = not connection.flush() and not connection.must_read
                    self._poller.want_write(connection, wanted=wanted)
                    continue
                answer = connection.receive()
            except LostServer as error:
                self._fail(sent, connection, str(error), time.perf_counter())
                continue
            if answer is not None:
                self._take(sent, connection, answer, again=again)
            elif connection.is_writing:  # HTTP/2 has something to say to what it read
                self._poller.want_write(connection, wanted=True)

    def _take(self, sent: Sent, connection: LoadConnection, answer: bytes, *, again: bool) -> None:
        now = time.perf_counter()
        if not connection.is_busy:  # an answer that nobody asked for: a server that is stopping
            self._close(connection)
            return
        sent.add(connection, answer, self._exchanges[connection.number].mark, now)
        connection.is_busy = False
        connection.free_since = now
        if connection.is_last:
            self._close(connection)
            if again:  # else the next one is opened when it is due
                self._send_anew(sent, now)
        elif again:
            self._send(sent, connection, now)
        else:
            self._free.append(connection)

    def _tick(self, sent: Sent, start: float, now: float, due: Iterable[float] = ()) -> Tick:
        for connection in self._under_way():
            if now - connection.due > self._timeout_s:
                self._fail(sent, connection, f"no answer in {self._timeout_s:g} s", now)
        overdue = sum(1 for _ in itertools.takewhile(lambda at: start + at <= now, due))
        tick = Tick(now - start, len(sent.done), sent.errors, sent.in_flight + overdue)
        if self._on_tick is not None:
            self._on_tick(tick)
        return tick

    def _under_way(self) -> list[LoadConnection]:
        return [each for each in self._connections.values() if each.is_busy]

    def _fail(self, sent: Sent, connection: LoadConnection, kind: str, now: float) -> None:
        if connection.is_busy:
            connection.is_busy = False
            sent.in_flight -= 1
            sent.fail(connection.due, kind, now, connection.late)
        self._close(connection)

    def _close(self, connection: LoadConnection) -> None:
        self._poller.remove(connection)
        del self._connections[connection.fileno()]
        connection.socket.close()

    def _hang_up(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._free.clear()
        self._leaving.clear()
