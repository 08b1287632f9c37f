"""An encoder of BERT-base size, texts of 16 to 512 tokens: offline, in process, and over HTTP.

Meant for a GPU; without one it runs on the CPU, on a smaller model, to see that it works.
"""

import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy

from benchmarks.load import AskedRequest, Generator, post
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import Running, _free_port

SHORTEST, LONGEST = 16, 512
BATCHES = (16, 32, 64, 128, 256)
ROWS = 16  # a request, over HTTP
VOCABULARY = 30_000
MAX_BATCH_SIZE = 256
# Processes. Where a batch is over in 40 ms, one lays its own out while the other's is on the GPU.
# Where it takes 300 ms, that saves little, and a GPU that two processes share loses more: offline,
# two at once make 7 % less in float32 than one alone.
WORKERS = {"bfloat16": 2, "float32": 1}
ASKED = 0.92  # of the offline rate
SETTLED_S = 2.0  # after which a closed loop of clients is under way


class Measured(NamedTuple):
    per_s: float
    batch_rows: float = 0.0
    padding: float = 0.0
    busy: float | None = None  # the share of the time in which the GPU worked; None: unknown


def gpu_encoder(quick: bool) -> Report:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtypes = ("bfloat16", "float32") if device == "cuda" else ("float32",)
    count = (512 if quick else 16_384) if device == "cuda" else 64
    rows: list[list[object]] = []
    bars: list[Bar] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "encoder", is_small=device == "cpu")
        for dtype in dtypes:
            some = count if dtype == dtypes[0] else count // 4  # it takes so much longer
            _measure(path, device, dtype, some, rows, bars, notes)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    notes.append(f"{name}, torch {torch.__version__}; {count} texts of 16 to 512 tokens, uniform")
    return Report(
        "G1. An encoder of BERT-base size on a GPU",
        ["", "texts/s", "rows a batch", "padding", "GPU busy"],
        rows,
        bars,
        notes,
    )


def _measure(
    path: Path,
    device: str,
    dtype: str,
    count: int,
    rows: list[list[object]],
    bars: list[Bar],
    notes: list[str],
) -> None:
    texts = texts_of(count)
    options = {"device": device, "dtype": dtype}
    model = loaded(path, options)
    items = [model.prepare(text) for text in texts]
    alone = _alone(model, items[: max(16, count // 32)])
    offline = {size: _offline(model, items, size) for size in BATCHES}
    best = max(offline, key=offline.__getitem__)
    notes.append(f"{dtype}: batched and alone differ by at most {_difference(model, items):.1e}")
    del model
    inside = asyncio.run(_in_process(path, options, [*texts] * 3, WORKERS[dtype]))
    over_http = _over_http(path, options, texts, WORKERS[dtype])
    rows += [
        [f"{dtype}, one at a time", f"{alone:,.0f}", 1, "0.0%", ""],
        [f"{dtype}, offline, sorted by length", f"{offline[best]:,.0f}", best, "", ""],
        _row(f"{dtype}, in process, workers: {WORKERS[dtype]}", inside),
        _row(f"{dtype}, over HTTP, {ROWS} rows a request, same workers", over_http),
    ]
    sizes = ", ".join(f"{size}: {rate:,.0f}" for size, rate in offline.items())
    notes.append(f"{dtype}: offline by rows a batch: {sizes}")
    is_full = alone * 10 > offline[best]
    if is_full:
        notes.append(f"{dtype}: the GPU is full with few texts; 10 × one at a time is no batch's")
    for where, found in (("in process", inside), ("over HTTP", over_http)):
        share = found.per_s / offline[best]
        asked = f"{dtype} {where}: ≥ {ASKED:.0%} of offline"
        bars.append(Bar(asked, f"{share:.1%}", share >= ASKED))
        if is_full:
            continue
        times = found.per_s / alone
        bars.append(Bar(f"{dtype} {where}: ≥ 10 × one at a time", f"{times:.1f} ×", times >= 10))


def _row(name: str, found: Measured) -> list[object]:
    return [
        name,
        f"{found.per_s:,.0f}",
        f"{found.batch_rows:.0f}",
        f"{found.padding:.1%}",
        "" if found.busy is None else f"{found.busy:.0%}",
    ]


# ---- the model and its texts


def write_model(path: Path, *, is_small: bool) -> Path:
    """Random weights: the work is the same."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    config: Any = BertConfig()
    if is_small:
        config.num_hidden_layers, config.hidden_size = 2, 128
        config.num_attention_heads, config.intermediate_size = 4, 256
    model: Any = BertModel(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(path, safe_serialization=True)
    words = {"[UNK]": 0, **{f"w{number}": number + 1 for number in range(VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def texts_of(count: int) -> list[str]:
    rng = random.Random(7)
    return [
        " ".join(f"w{rng.randrange(VOCABULARY)}" for _ in range(rng.randint(SHORTEST, LONGEST)))
        for _ in range(count)
    ]


def loaded(path: Path, options: dict[str, Any]) -> Any:
    from headway.models import catalogue

    model = catalogue.build(str(path), options)
    model.setup()
    model.load()
    return model


def _synchronized() -> float:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _alone(model: Any, items: Sequence[Any]) -> float:
    model.predict(items[:1])
    started = _synchronized()
    for item in items:
        model.predict([item])
    return len(items) / (_synchronized() - started)


def _offline(model: Any, items: Sequence[Any], size: int) -> float:
    ordered = sorted(items, key=model.size)
    batches = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    for batch in batches[:: max(1, len(batches) // 8)]:
        model.predict(batch)
    started = _synchronized()
    for batch in batches:
        model.predict(batch)
    return len(items) / (_synchronized() - started)


def _difference(model: Any, items: Sequence[Any]) -> float:
    some = items[:64]
    together = model.predict(list(some))
    apart = [model.predict([item])[0] for item in some]
    return float(max(numpy.abs(a - b).max() for a, b in zip(together, apart, strict=True)))


# ---- served


async def _in_process(
    path: Path, options: dict[str, Any], texts: Sequence[str], workers: int
) -> Measured:
    import gc

    import headway
    from headway.events import BatchFinished
    from headway.models import catalogue

    batches: list[BatchFinished] = []

    def note(event: Any) -> None:
        if isinstance(event, BatchFinished):
            batches.append(event)

    model: Any = catalogue.build(str(path), options)
    async with headway.Batcher[Any, Any](
        model,
        worker="process",
        workers=workers,
        max_batch_size=MAX_BATCH_SIZE,
        max_queue=1 << 20,
    ) as batcher:
        await batcher.warm_up(*model.samples(), limit_s=20.0)
        batcher.observe(note)
        # As a server does: a full collection looks at all that torch has imported, half a second
        # each time.
        gc.collect()
        gc.freeze()
        waiting = iter(texts)

        async def caller() -> None:
            for text in waiting:
                await batcher.submit(text)

        with Busy() as gpu:
            started = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(2048)))
            seconds = time.perf_counter() - started
    gc.unfreeze()
    rows = [event.batch.rows for event in batches]
    padding = statistics.fmean(event.batch.padding for event in batches)
    return Measured(len(texts) / seconds, statistics.fmean(rows), padding, gpu.share)


def _over_http(path: Path, options: dict[str, Any], texts: Sequence[str], workers: int) -> Measured:
    port = _free_port()
    command = [sys.executable, "-m", "headway", "serve", str(path), "--name", "encoder"]
    command += ["--port", str(port), "--grpc-port", "-1"]
    command += ["--worker", "process", "--workers", str(workers)]
    command += ["--max-batch-size", str(MAX_BATCH_SIZE), "--max-queue", "65536"]
    command += ["--options", ",".join(f"{key}={value}" for key, value in options.items())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            Running("encoder", port, process).wait_listening()
            _wait_ready(port)
            generator = Generator(port, _requests(texts))
            generator.closed(64, 2.0)
            before = _scraped(port)
            with Busy() as gpu:
                load = generator.closed(64, SETTLED_S + 12.0)
            after = _scraped(port)
            if load.failed:
                raise RuntimeError(f"{load.failed} requests failed: {generator.last_failure!r}")
        finally:
            process.terminate()
            process.wait(30)
    batches = after["batches"] - before["batches"]
    rows = after["rows"] - before["rows"]
    padding = (after["padding"] - before["padding"]) / batches
    per_s = load.per_s_after(SETTLED_S) * ROWS
    return Measured(per_s, rows / batches, padding, gpu.share)


class Busy:
    """Asks the driver five times a second."""

    share: float | None = None

    def __enter__(self) -> Self:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        self._asking: subprocess.Popen[str] | None = None
        if shutil.which(command[0]):
            self._asking = subprocess.Popen(
                [*command, "-lms", "200"], stdout=subprocess.PIPE, text=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._asking is None:
            return
        self._asking.terminate()
        said = self._asking.communicate()[0].split()
        shares = [int(each) / 100 for each in said if each.isdigit()]
        self.share = statistics.fmean(shares) if shares else None


def _requests(texts: Sequence[str]) -> list[AskedRequest]:
    found = []
    for at in range(0, len(texts) - ROWS + 1, ROWS):
        data = list(texts[at : at + ROWS])
        each = {"name": "text", "datatype": "BYTES", "shape": [ROWS], "data": data}
        body = {"inputs": [each], "parameters": {"binary_data_output": True}, "id": f"r{at}"}
        mark = f'"id":"r{at}"'.encode()
        found.append(post("/v2/models/encoder/infer", json.dumps(body).encode(), mark))
    return found


def _get(port: int, path: str) -> tuple[int, str]:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def _wait_ready(port: int) -> None:
    for _ in range(600):
        if _get(port, "/v2/models/encoder/ready")[0] == 200:
            return
        time.sleep(0.1)
    raise RuntimeError("the model does not get ready")


def _scraped(port: int) -> dict[str, float]:
    page = _get(port, "/metrics")[1]

    def total(name: str) -> float:
        lines = (line for line in page.splitlines() if line.startswith(name + "{"))
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    return {
        "batches": total("headway_batch_rows_count"),
        "rows": total("headway_batch_rows_sum"),
        "padding": total("headway_batch_padding_ratio_sum"),
    }


BENCHMARKS: dict[str, Benchmark] = {"gpu-encoder": gpu_encoder}
