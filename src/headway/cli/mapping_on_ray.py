"""`headway map --on`: the lines of a large file in parts, through models that Ray Data keeps.

A part goes to one of Ray's processes, which reads it, and answers it as `headway map` does; a part
whose process is lost is done again by another. The output is written here, in the order of the
lines, so it is resumed like any other.
"""

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headway.cli.mapping import BatchCounts, opened
from headway.errors import ConfigError, ModelFailed
from headway.offline.lines import FilePart, lines_of_part, parts_of
from headway.offline.mapping import Tally, map_lines
from headway.offline.output import is_failure

if TYPE_CHECKING:
    from headway.config import ModelConfig
    from headway.offline.output import Output

_T = TypeVar("_T")
_AT_ONCE = 2  # parts of one model: while the end of one runs dry, the next one begins


class _Made(msgspec.Struct, frozen=True):
    """Of a part."""

    records: bytes
    lines: int
    end: int
    first_errors: list[tuple[int, str]]
    cut: tuple[int, int] | None  # the file's last line, where it has no newline, and its end
    model: str  # which of Ray's processes
    counts: tuple[int, int, int, int]  # of that process, so far


class LinesModel:
    """A model in one of Ray's processes."""

    def __init__(self, config: "ModelConfig", source: str, folder: str) -> None:
        sys.path.insert(0, folder)  # `app:Model` is app.py there
        self._source = Path(source)
        if not self._source.is_file():
            raise ConfigError(f"{source}: there is no such file on a node of the cluster")
        self._name = uuid.uuid4().hex
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="headway-map", daemon=True).start()
        self._batches = BatchCounts()
        self._served, self._answer = self._wait(opened(config, self._batches))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        parts = zip(*(batch[name].tolist() for name in ("begin", "end", "before")), strict=True)
        made = [self._wait(self._map(FilePart(*each))) for each in parts]
        return {"made": [msgspec.msgpack.encode(each) for each in made]}

    async def _map(self, part: FilePart) -> _Made:
        records: list[bytes] = []
        cuts: list[tuple[int, int]] = []
        tally = await map_lines(
            lines_of_part(self._source, part),
            self._answer,
            records.append,
            ahead=max(1, self._served.config.max_queue // _AT_ONCE),
            cut=lambda line, end: cuts.append((line, end)),
        )
        return _Made(
            b"".join(records),
            tally.lines,
            part.end,
            tally.first_errors,
            cuts[-1] if cuts else None,
            self._name,
            self._batches.counts,
        )

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def map_on_ray(
    where: str,
    source: Path,
    config: "ModelConfig",
    output: "Output",
    batches: BatchCounts,
    *,
    models: int | None,
    max_errors: int | None,
    report: Callable[[Tally], None],
) -> Tally:
    tally = Tally()
    parts = list(parts_of(source, after=output.last_line))
    if not parts:
        return tally
    with _connected(where) as ray:
        counts: dict[str, tuple[int, int, int, int]] = {}
        for made in _made(ray, parts, (config, str(source.resolve()), os.getcwd()), models):
            before = counts.get(made.model, (0, 0, 0, 0))
            new = [now - then for now, then in zip(made.counts, before, strict=True)]
            batches.add(*new)
            counts[made.model] = made.counts
            _write(made, tally, output, max_errors)
            report(tally)
            if tally.gave_up:
                break
    return tally


def _write(made: _Made, tally: Tally, output: "Output", max_errors: int | None) -> None:
    """The records; where too many lines have failed, up to the first one beyond."""
    records = made.records.splitlines(keepends=True)
    if max_errors is not None:
        records = kept_records(records, max_errors - output.failed - tally.failed)
    if made.cut is not None and len(records) == made.lines:
        output.note_cut(*made.cut)
    output.write(b"".join(records))
    tally.lines += len(records)
    tally.failed += sum(map(is_failure, records))
    tally.gave_up = max_errors is not None and output.failed + tally.failed > max_errors
    tally.end = made.end
    tally.first_errors += made.first_errors[: Tally.SHOWN - len(tally.first_errors)]


def kept_records(records: list[bytes], most_failures: int) -> list[bytes]:
    """The records up to the failure that exceeds `most_failures`, with it; or all of them."""
    for place, record in enumerate(records):
        most_failures -= is_failure(record)
        if most_failures < 0:
            return records[: place + 1]
    return records


def _made(
    ray: Any, parts: list[FilePart], arguments: tuple[Any, ...], models: int | None
) -> Iterator[_Made]:
    """In the order of the parts."""
    resources = ray.cluster_resources()
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False  # ours is over the bytes of the file
    rows = [{"begin": each.begin, "end": each.end, "before": each.before} for each in parts]
    found = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        LinesModel,
        fn_constructor_args=arguments,
        batch_size=None,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(
            size=min(models or gpus or cpus, len(parts)),
            max_concurrent_calls_per_actor=_AT_ONCE,
            enable_true_multi_threading=True,
        ),
        **({"num_gpus": 1} if gpus else {"num_cpus": 1}),
    )
    try:
        for row in found.iter_rows():
            yield msgspec.msgpack.decode(row["made"], type=_Made)
    except ray.exceptions.RayError as error:
        raise ModelFailed(f"on Ray: {getattr(error, 'cause', None) or error}") from error


def ray_for(where: str) -> Any:
    """Ray, if there is one and `where` is a place for it."""
    if where.startswith("ray://"):
        raise ConfigError(
            "Ray's client does not carry what Ray Data streams: run this on a node of the cluster, "
            "with --on auto",
            field="--on",
        )
    if where not in ("local", "auto"):
        raise ConfigError(f"is local or auto, not {where!r}", field="--on")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError("needs Ray: pip install 'headway[ray]'", field="--on") from error
    return ray


@contextmanager
def _connected(where: str) -> Iterator[Any]:
    ray = ray_for(where)
    with redirect_stdout(sys.stderr):  # what its processes say; the summary is alone on stdout
        try:
            ray.init(where, **({"include_dashboard": False} if where == "local" else {}))
        except (ConnectionError, RuntimeError) as error:
            raise ConfigError(f"{where}: {error}", field="--on") from error
        try:
            yield ray
        finally:
            ray.shutdown()
