"""A job of Ray Data that is killed half-way and run again: every row is answered once.

`python -m benchmarks.lab.ray_resumed FOLDER` is the job.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Bar, Report

_ROOT = Path(__file__).parents[2]


def job(folder: Path) -> None:
    import ray
    from ray.data.checkpoint import CheckpointConfig

    import headway.ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200 * 2**20,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 200 * 2**10
    context.checkpoint_config = CheckpointConfig(
        id_column="id",
        checkpoint_path=str(folder / "checkpoint"),
        delete_checkpoint_on_success=False,
    )
    ray.data.read_parquet(str(folder / "in")).map_batches(
        headway.ray.Predict,
        fn_constructor_args=("benchmarks.lab.on_ray:Texts",),
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    ).write_parquet(str(folder / "out"))


def resumed(quick: bool) -> Report:
    count, files = (20_000, 10) if quick else (100_000, 40)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        each = count // files
        for file in range(files):
            ids = range(file * each, (file + 1) * each)
            table = pa.table({"id": ids, "text": ["x" * _length(number) for number in ids]})
            pq.write_table(table, folder / "in" / f"{file:03}.parquet")
        first = _started(folder)
        while first.poll() is None and _rows_written(folder) < count // 2:
            time.sleep(0.2)
        first.send_signal(signal.SIGKILL)
        first.wait()
        before = _rows_written(folder)
        assert _started(folder).wait() == 0
        found = pq.read_table(folder / "out", columns=["id", "prediction"]).to_pydict()
    ids = found["id"]
    lost, doubled = len(set(range(count)) - set(ids)), len(ids) - len(set(ids))
    wrong = sum(
        prediction != _length(number)
        for number, prediction in zip(ids, found["prediction"], strict=True)
    )
    return Report(
        "Ray Data: a job that is killed half-way and run again, with Ray's checkpoints",
        ["rows", "written before the kill", "lost", "doubled", "wrong"],
        [[f"{count:,}", f"{before:,}", lost, doubled, wrong]],
        [
            Bar(
                f"{count:,} rows, killed and resumed: none lost or doubled",
                f"{lost} lost, {doubled} doubled, {wrong} wrong; killed after {before:,}",
                not (lost or doubled or wrong) and 0 < before < count,
            )
        ],
    )


def _length(number: int) -> int:
    return 1 + number * 7919 % 251


def _started(folder: Path) -> "subprocess.Popen[bytes]":
    path = f"{_ROOT}{os.pathsep}{_ROOT / 'src'}"
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.lab.ray_resumed", str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
    )


def _rows_written(folder: Path) -> int:
    count = 0
    for file in (folder / "out").glob("*.parquet"):
        with suppress(pa.ArrowInvalid):  # it is being written
            count += pq.read_metadata(file).num_rows
    return count


if __name__ == "__main__":
    job(Path(sys.argv[1]))
