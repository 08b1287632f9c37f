"""The last batches as a Chrome trace: Perfetto and `chrome://tracing` open it.

A process for each version of a model, a track for each of its workers, a slice for each batch.
Items overlap, so each is a span of its own, with its waiting and its run inside.
"""

from collections.abc import Iterable, Iterator
from typing import Any

_OTHER_FIELDS = ("number", "model", "version", "items", "text")


def chrome_trace(page: Any) -> dict[str, Any]:
    """`page`: the answer of `/admin/explain`."""
    records = [*page["batches"], *page["answers"], *page["incidents"]]
    names = sorted({(each["model"], each["version"]) for each in records})
    processes = {name: number for number, name in enumerate(names, 1)}
    events = [_meta("process_name", processes[name], 0, " version ".join(name)) for name in names]
    workers = sorted({(_process(each, processes), each["worker"]) for each in page["batches"]})
    events += [
        _meta("thread_name", process, worker + 1, f"worker {worker}") for process, worker in workers
    ]
    for batch in page["batches"]:
        events += _batch(batch, _process(batch, processes))
    for answer in page["answers"]:
        events += _answer(answer, _process(answer, processes))
    for incident in page["incidents"]:
        process = _process(incident, processes)
        place = {"ph": "i", "s": "p", "pid": process, "tid": 0, "ts": _us(incident["at"])}
        events.append({"name": incident["kind"], "args": {"why": incident["message"]}, **place})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _process(record: Any, processes: dict[tuple[str, str], int]) -> int:
    return processes[record["model"], record["version"]]


def _meta(name: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {"name": text}}


def _batch(batch: Any, process: int) -> Iterator[dict[str, Any]]:
    began, ended = _us(batch["fired_at"]), _us(batch["finished_at"])
    lost = ", lost" if batch["lost"] else ""
    yield {
        "ph": "X",
        "name": f"{batch['rows']} rows, {batch['reason']}{lost}",
        "pid": process,
        "tid": batch["worker"] + 1,
        "ts": began,
        "dur": ended - began,
        "args": {name: batch[name] for name in batch if name not in _OTHER_FIELDS},
    }
    for item in batch["items"]:
        arrived = _us(item["arrived_at"])
        free = max(arrived, min(began, _us(batch["idle_since"])))
        name = item["request"] or f"item {item['id']}"
        parts = [("queued", arrived, free), ("lingered", free, began), ("ran", began, ended)]
        yield from _span(f"{batch['batch']}/{item['id']}", name, process, item, parts)


def _answer(answer: Any, process: int) -> Iterator[dict[str, Any]]:
    arrived, ended = _us(answer["arrived_at"]), _us(answer["ended_at"])
    began = _us(answer["admitted_at"] or answer["ended_at"])
    first = max(began, _us(answer["first_at"] or answer["ended_at"]))
    parts = [("queued", arrived, began), ("prefill", began, first), ("decode", first, ended)]
    name = f"sequence {answer['sequence']}"
    yield from _span(f"answer/{answer['sequence']}", name, process, answer, parts)


def _span(
    span: str, name: str, process: int, about: Any, parts: Iterable[tuple[str, int, int]]
) -> Iterator[dict[str, Any]]:
    """A span with its parts inside; those that took no time are left out."""
    place = {"cat": "item", "id": span, "pid": process, "tid": 0}
    inner = [each for each in parts if each[2] > each[1]]
    if not inner:
        return
    yield {"ph": "b", "name": name, "ts": inner[0][1], "args": about, **place}
    for part, began, ended in inner:
        yield {"ph": "b", "name": part, "ts": began, **place}
        yield {"ph": "e", "name": part, "ts": ended, **place}
    yield {"ph": "e", "name": name, "ts": inner[-1][2], **place}


def _us(moment: float) -> int:
    return round(moment * 1e6)
