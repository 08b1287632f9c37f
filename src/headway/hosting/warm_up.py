"""Times a model on typical values before it is ready, by rows and by size, as far as memory and the
time limit allow. The table is saved, and used at the next start."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from headway.core.costs import CostTable, probe_rows
from headway.errors import ConfigError, HeadwayError
from headway.hosting.registry import Array
from headway.hosting.tables import TableStore
from headway.machine import PeakMeter, free_bytes
from headway.model import Tensor
from headway.runtime.batching.batcher import Batcher
from headway.runtime.calling.faults import is_out_of_memory
from headway.runtime.calling.runner import BrokenContract
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.jobs.probing import ProbeWatcher

_log = logging.getLogger(__name__)
_REPEATS = 2
_TYPICAL = 2  # samples to run if times are known: buffers grow with the sizes seen
_FILL = 0.8  # of the memory that is free
MAX_SAMPLES = 16
_LENGTHS = (8, 32, 128, 512)  # of axes that vary
_REST = 4.0  # times as long as each probe took, while others are served by the same cores
_ALIKE = 2.0  # times of a single row differ by no more than this factor
_JITTER_S = 0.001  # of threads that share an interpreter


@dataclass(frozen=True, slots=True)
class Warmth:
    """The result of a warm-up."""

    table: CostTable
    max_rows: int | None  # that fit into memory; None: as many as are allowed


@dataclass(frozen=True, slots=True)
class Beside:
    """The traffic beside a warm-up."""

    is_asked: Callable[[], bool]  # whether others are served: then probes rest in between
    before: CostTable | None  # of the version that it will replace, if that is alike


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How one model is warmed up."""

    samples: Sequence[Any]  # typical values, cheap ones first
    limit_s: float  # for everything: a slow model is served cold rather than late
    store: TableStore | None = None  # None: nothing is kept
    is_strict: bool = False  # a sample that fails fails the start
    beside: Beside | None = None  # None: no request is served meanwhile

    async def run(self, name: str, batcher: "Batcher[Any, Any]", max_rows: int) -> Warmth | None:
        """The batcher uses the returned table from now on; None: nothing could be measured."""
        kept = None if self.store is None else await run_in_thread(self.store.load)
        warmth: Warmth | None
        if kept is not None:
            await self._run_once(name, batcher)
            warmth = Warmth(kept, _fitting(kept))
        elif (before := await self._taken_over(name, batcher)) is not None:
            warmth = Warmth(before, _fitting(before))  # not kept: the next start will measure
        else:
            warmth = await self._measure(name, batcher, max_rows)
            if warmth is not None and warmth.max_rows is None and self.store is not None:
                await run_in_thread(self.store.save, warmth.table)
        if warmth is not None:
            if warmth.max_rows is not None and warmth.max_rows < max_rows:
                _log.warning("%s: no more than %d rows fit into memory", name, warmth.max_rows)
                batcher.limit_rows(warmth.max_rows)
            batcher.learn(warmth.table)
        return warmth

    async def _taken_over(self, name: str, batcher: "Batcher[Any, Any]") -> CostTable | None:
        """The table of the version that it will replace, if single rows take as long.

        Large batches would take the cores from models that serve; serving corrects what is
        different.
        """
        if self.beside is None or self.beside.before is None or not self.beside.is_asked():
            return None
        singles = await self._run_once(name, batcher)
        before = self.beside.before
        is_alike = bool(singles) and all(_is_alike(each, before) for each in singles)
        return before if is_alike else None

    async def _run_once(self, name: str, batcher: "Batcher[Any, Any]") -> list[CostTable]:
        """Times are known: run each sample once, for what a first call builds lazily."""
        singles: list[CostTable] = []
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.limit_s):
                    for sample in self.samples[:_TYPICAL]:
                        singles.append(
                            await batcher.warm_up(
                                sample,
                                repeats=_REPEATS,
                                limit_s=0.0,
                                _watcher=_Cells(lambda: None, self.beside, _pid_of(batcher)),
                            )
                        )
        except HeadwayError as error:
            self._tell(name, error)
        return singles

    async def _measure(
        self, name: str, batcher: "Batcher[Any, Any]", max_rows: int
    ) -> Warmth | None:
        """Times by rows and size; cheap sizes up to large batches, slow ones as far as time allows.

        A probe that is under way when the time is up only delays the first batch.
        """
        loop = asyncio.get_running_loop()
        end_at = loop.time() + self.limit_s
        tables: list[CostTable] = []
        fitting_rows: list[int] = []  # by sample whose next row count did not fit into memory
        try:
            with _progress(name, self._cells(max_rows)) as count, suppress(TimeoutError):
                async with asyncio.timeout_at(end_at):
                    for left, sample in zip(
                        range(len(self.samples), 0, -1), self.samples, strict=True
                    ):
                        # Row counts double: the last one, begun within the limit, takes as long
                        # as all before it. So the limit is half of this sample's share.
                        share_s = (end_at - loop.time()) / left / 2
                        watcher = _Cells(count, self.beside, _pid_of(batcher))
                        table = await batcher.warm_up(
                            sample, repeats=_REPEATS, limit_s=share_s, _watcher=watcher
                        )
                        tables.append(table)
                        if watcher.is_memory_full:
                            fitting_rows.append(table.rows[-1])
        except HeadwayError as error:
            self._tell(name, error)
        return Warmth(merged(tables), min(fitting_rows, default=None)) if tables else None

    def _cells(self, max_rows: int) -> int:
        """How many there are to time, at most."""
        is_sized = len(self.samples) > 1
        return len(self.samples) * len(probe_rows(max_rows, coarse=is_sized))

    def _tell(self, name: str, error: HeadwayError) -> None:
        """Made-up samples may be wrong, so log what the model raises; given samples must work. What
        breaks the contract can be no answer to any sample: such a model must not become ready."""
        if self.is_strict or isinstance(error, BrokenContract):
            raise error
        _log.warning("%s is served without a warm-up: %s", name, error)


class _Cells(ProbeWatcher):
    """Watches the cells of one size: their memory, whether the next one fits, the progress."""

    def __init__(self, count: Callable[[], object], beside: Beside | None, pid: int | None) -> None:
        self.is_memory_full = False
        self._count = count
        self._beside = beside
        self._meter = PeakMeter(pid)
        self._last: tuple[int, int] | None = None  # rows and bytes

    def may_run(self, rows: int, size: int) -> bool:
        if self._last is not None:
            room = free_bytes()
            last_rows, last_bytes = self._last
            if room is not None and last_bytes * rows / last_rows > _FILL * room:
                self.is_memory_full = True
                return False
        self._meter.start()
        return True

    async def wait_turn(self, last_s: float) -> None:
        """Use at most a fifth of the time while other models are served. This sleeps to rest, not
        to poll."""
        if self._beside is not None and self._beside.is_asked():
            await asyncio.sleep(_REST * last_s)

    def has_run(self, rows: int, size: int) -> int | None:
        peak = self._meter.peak_bytes()
        if peak is not None:
            self._last = rows, peak
        self._count()
        return peak

    def has_failed(self, error: HeadwayError) -> bool:
        self.is_memory_full = is_out_of_memory(error)
        return self.is_memory_full


def _pid_of(batcher: "Batcher[Any, Any]") -> int | None:
    """The process that is probed; None: this one."""
    return next((each.pid for each in batcher.worker_processes), None)


def _is_alike(single: CostTable, known: CostTable) -> bool:
    """Does the smallest batch of one size take about as long as it took there?"""
    rows, size, sizes = single.rows[0], (single.sizes or (0,))[0], known.sizes or (0,)
    if rows not in known.rows or size not in sizes:
        return False
    there = known.seconds[known.rows.index(rows)][sizes.index(size)]
    fastest = single.seconds[0][0] * (1.0 + min(single.errors, default=0.0))
    return there / _ALIKE - _JITTER_S <= fastest <= there * _ALIKE + _JITTER_S


def _fitting(table: CostTable) -> int | None:
    """The most rows of a kept table that fit into the memory which is free today."""
    room = free_bytes()
    if room is None or table.memory_bytes is None:
        return None
    fits = [
        rows
        for rows, line in zip(table.rows, table.memory_bytes, strict=True)
        if max(line) <= _FILL * room
    ]
    return None if len(fits) == len(table.rows) else max(fits, default=1)


def samples_from(path: Path, decode: Callable[[Any], Any]) -> list[Any]:
    """The values of a `samples.jsonl`: one on each line, as a caller would send it."""
    samples: list[Any] = []
    try:
        with path.open() as file:
            for number, line in enumerate(file, 1):
                if line.strip() and len(samples) < MAX_SAMPLES:
                    samples.append(_decoded(line, decode, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return samples


def samples_of(tensors: Sequence[Tensor]) -> list[dict[str, Array]]:
    """One row made from the signature; if an axis varies, one row for each of several lengths."""
    varies = any(-1 in tensor.shape[1:] for tensor in tensors)
    return [
        {tensor.name: _sample(tensor, length) for tensor in tensors}
        for length in (_LENGTHS if varies else _LENGTHS[:1])
    ]


def merged(tables: Sequence[CostTable]) -> CostTable:
    """One table of all sizes. Rows that were not timed at a size cost as much as its last ones."""
    rows = max((table.rows for table in tables), key=len)
    times: dict[int, list[float]] = {}
    memory: dict[int, list[float]] = {}
    for table in tables:
        size = table.sizes[0] if table.sizes else 0
        times[size] = _extended([line[0] for line in table.seconds], table.rows, rows)
        if table.memory_bytes is not None:
            memory[size] = _extended([line[0] for line in table.memory_bytes], table.rows, rows)
    sizes = sorted(times)
    return CostTable(
        rows=rows,
        sizes=None if sizes == [0] else tuple(sizes),
        seconds=tuple(tuple(times[size][i] for size in sizes) for i in range(len(rows))),
        memory_bytes=tuple(
            tuple(round(memory[size][i]) for size in sizes) for i in range(len(rows))
        )
        if sizes == sorted(memory)
        else None,
        errors=tuple(error for table in tables for error in table.errors),
    )


def _extended(column: Sequence[float], known: Sequence[int], rows: Sequence[int]) -> list[float]:
    return [*column, *(column[-1] * more / known[-1] for more in rows[len(column) :])]


def _decoded(line: str, decode: Callable[[Any], Any], where: str) -> Any:
    try:
        return decode(json.loads(line))
    except (ValueError, RecursionError, HeadwayError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _sample(tensor: Tensor, length: int) -> Array:
    """One row. All varying axes get the same length: mostly it is one, such as a text's."""
    shape = (1, *(length if axis == -1 else axis for axis in tensor.shape[1:]))
    if tensor.dtype == "object":
        return numpy.full(shape, b"sample", dtype=object)
    # Ones for measurements; zeros for what may be an index into a table.
    dtype = numpy.dtype(tensor.array_dtype)
    return numpy.zeros(shape, dtype) if dtype.kind in "iu" else numpy.ones(shape, dtype)


@contextmanager
def _progress(name: str, cells: int) -> Iterator[Callable[[], object]]:
    """A bar, for a person at a terminal."""
    if not (sys.stderr.isatty() and cells):
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=cells, desc=f"warming {name}", unit="probe", leave=False) as bar:
        yield bar.update
