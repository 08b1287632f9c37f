"""Why a request took as long as it did: told from the history of its model. Pure.

A request's time has five parts: before it was queued, queued (every worker was busy), lingering (a
free worker waited for more items), run, and its answer; that of a language model's answer has six:
before, queued, prefill, decode, preempted, answer. The largest part is looked at closely.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple, TypeAlias

from headway.core.items import FireReason, Item
from headway.observe.history import AnswerRecord, BatchRecord, History, ModelHistory
from headway.observe.requests import RequestNote
from headway.runtime.events import BatchFinished, BatchLost

REASONS = {
    FireReason.FULL: "no further row is allowed",
    FireReason.KNEE: "a larger batch would not pay",
    FireReason.BUDGET: "its cost or memory was used up",
    FireReason.IDLE: "a worker was free, and waiting was not expected to pay",
    FireReason.LINGER: "it had waited for more items as long as that paid",
    FireReason.ALL_HERE: "as many callers were there as it pays to wait for",
    FireReason.WINDOW: "its oldest item had waited the window",
    FireReason.DEADLINE: "a later start would have missed a deadline",
    FireReason.DRAIN: "the model was closing",
    FireReason.RETRY: "it ran again: its worker had been lost",
}
_REFUSED = {
    "shed": ("shed", "more workers, a larger slo_ms, or fewer requests"),
    "queue_full": ("queue_full", "more workers, a larger max_queue, or fewer requests"),
    "quota_exceeded": ("throttled", "a larger quota for its key, or requests that are spread out"),
    "deadline_exceeded": ("late", "a longer deadline, more workers, or fewer requests"),
}
_SLACK_S = 0.002  # what the event loop may be late without being the cause
_TWICE = 2.0
_ENOUGH = 3  # batches to compare with


class RequestSeen(NamedTuple):
    """A request that has ended, whichever way it took."""

    id: str
    what: str
    started_at: float
    ended_at: float
    code: str
    items: Sequence[tuple[ModelHistory, int]]
    item_count: int  # `items` may have the last ones only
    loaded_s: float
    is_stream: bool = False

    @property
    def total_s(self) -> float:
        return self.ended_at - self.started_at


class Cause(NamedTuple):
    word: str
    why: str
    advice: str = ""  # what would change it


class RequestStory(NamedTuple):
    request: RequestSeen
    parts: dict[str, float]  # seconds, by name; together the whole time
    cause: Cause
    record: BatchRecord | None  # the batch that its caller waited for
    item: Item | None
    model: ModelHistory | None
    answer: AnswerRecord | None = None  # of a language model


Runs: TypeAlias = dict[tuple[int, int], list[tuple[BatchRecord, Item]]]  # by model and item


def requests_of(history: History, models: Sequence[ModelHistory]) -> Iterator[RequestSeen]:
    """The requests to these models, and those that no model has seen."""
    shown = set(map(id, models))
    for note in list(history.requests.ended):
        if not note.items or any(id(model) in shown for model, _ in note.items):
            yield _seen(note)
    for model in models:
        for request_id, item, started_at, ended_at, code in list(model.requests):
            items, what = ((model, item),), f"{model.model}, directly"
            yield RequestSeen(request_id, what, started_at, ended_at, code, items, 1, 0.0)


def _seen(note: RequestNote) -> RequestSeen:
    times, more = (note.started_at, note.ended_at), (note.loaded_s, note.is_stream)
    return RequestSeen(note.id, note.what, *times, note.code, note.items, note.count, *more)


def runs_of(requests: Iterable[RequestSeen]) -> Runs:
    """The batches that the items of these requests were in."""
    wanted: dict[int, tuple[ModelHistory, set[int]]] = {}
    for request in requests:
        for model, item_id in request.items:
            wanted.setdefault(id(model), (model, set()))[1].add(item_id)
    runs: Runs = {}
    for key, (model, ids) in wanted.items():
        for record in list(model.batches):
            for item in record.event.batch.items:
                if item.id in ids:
                    runs.setdefault((key, item.id), []).append((record, item))
    return runs


def tell(request: RequestSeen, known_runs: Runs) -> RequestStory:
    runs = [
        (model, record, item)
        for model, item_id in request.items
        for record, item in known_runs.get((id(model), item_id), ())
    ]
    finished = [each for each in runs if isinstance(each[1].event, BatchFinished)]
    if not finished and (answers := _answers_of(request)):
        return _tell_answer(request, *max(answers, key=lambda each: each[1].ended_at))
    if not finished:
        parts = {"before": request.total_s}
        return RequestStory(request, parts, _cause_without_batch(request), None, None, None)
    model, record, item = max(finished, key=lambda run: run[1].event.batch.fired_at)
    event = record.event
    assert isinstance(event, BatchFinished)
    batch = event.batch
    parts = {
        "before": item.arrived_at - request.started_at,
        "queued": batch.queued_s(item),
        "lingered": batch.lingered_s(item),
        "run": event.finished_at - batch.fired_at,
        "answer": request.ended_at - event.finished_at,
    }
    lost = [record.event for _, record, _ in runs if isinstance(record.event, BatchLost)]
    seen = _Seen(request, model, record, event, item, parts)
    cause = _rerun(lost, item) if lost else _CAUSES[max(parts, key=lambda each: parts[each])](seen)
    return RequestStory(request, parts, cause, record, item, model)


def _cause_without_batch(request: RequestSeen) -> Cause:
    if request.code in _REFUSED:
        word, advice = _REFUSED[request.code]
        return Cause(word, f"it was refused: {request.code}", advice)
    if request.code:
        return Cause("error", f"it failed before it ran: {request.code}")
    return Cause("unknown", "its batch is kept no longer")


def _answers_of(request: RequestSeen) -> list[tuple[ModelHistory, AnswerRecord]]:
    wanted = {(id(model), sequence): model for model, sequence in request.items}
    models = {id(model): model for model in wanted.values()}
    return [
        (model, answer)
        for model in models.values()
        for answer in list(model.answers)
        if (id(model), answer.sequence) in wanted
    ]


def _tell_answer(request: RequestSeen, model: ModelHistory, answer: AnswerRecord) -> RequestStory:
    admitted_at = answer.admitted_at or answer.ended_at
    first_at = max(answer.first_at or answer.ended_at, admitted_at)
    decode_s = answer.ended_at - first_at
    in_decode_s = min(decode_s, answer.preempted_s)  # the rest was before its first token
    parts = {
        "before": answer.arrived_at - request.started_at,
        "queued": admitted_at - answer.arrived_at,
        "prefill": first_at - admitted_at - (answer.preempted_s - in_decode_s),
        "decode": decode_s - in_decode_s,
        "preempted": answer.preempted_s,
        "answer": request.ended_at - answer.ended_at,
    }
    cause = _cause_of_answer(request, model, answer, parts)
    return RequestStory(request, parts, cause, None, None, model, answer)


def _cause_of_answer(
    request: RequestSeen, model: ModelHistory, answer: AnswerRecord, parts: dict[str, float]
) -> Cause:
    longest = _main_part(request, parts)
    seconds = _ms(parts[longest])
    if request.code in _REFUSED and answer.admitted_at is None:
        return _cause_without_batch(request)
    if longest == "before":
        return _before(request, parts["before"])
    if longest == "queued":
        return _cause_of_wait(model, answer, parts["queued"])
    if longest == "preempted":
        times = "once" if answer.preemptions == 1 else f"{answer.preemptions} times"
        why = (
            f"it was preempted {times}, because the KV cache was full, and waited {seconds} to be "
            "computed again"
        )
        return Cause("preempted", why, "a larger kv_cache_gib, or a smaller max_sequences")
    if longest == "answer":
        return _slow_reader(seconds)
    if longest == "prefill":
        return _cause_of_prefill(answer, seconds)
    pace = _ms(parts["decode"] / max(1, answer.tokens - 1))
    why = f"it has {answer.tokens} tokens, {pace} apart"
    return Cause("decode", why, "a smaller max_tokens, a smaller max_sequences, a faster machine")


def _cause_of_wait(model: ModelHistory, answer: AnswerRecord, queued_s: float) -> Cause:
    seconds = _ms(queued_s)
    if answer.awaited_tokens:
        why = (
            f"it waited {seconds} while others computed {answer.awaited_tokens} tokens that "
            "its prompt shares with theirs"
        )
        return Cause("shared_prompt", why, "one call before the others, or a larger step_tokens")
    others = sum(
        (each.admitted_at or math.inf) < answer.arrived_at + queued_s
        and each.ended_at > answer.arrived_at
        for each in list(model.answers)
    )
    if not others:
        why = f"it waited {seconds} for the engine, though no other answer was there"
        return Cause("handover", why, "a less busy machine")
    why = f"it waited {seconds} for a place beside {others} other answers"
    return Cause("behind_others", why, "a larger max_sequences or kv_cache_gib, or a replica")


def _cause_of_prefill(answer: AnswerRecord, seconds: str) -> Cause:
    computed = answer.prompt_tokens - answer.cached_tokens
    why = (
        f"its prompt of {answer.prompt_tokens} tokens took {seconds}: {computed} were "
        f"computed, in {answer.chunks} steps"
    )
    if answer.chunks > 1:
        return Cause("prefill", why, "prompts that begin alike, or a larger step_tokens")
    return Cause("prefill", why, "fewer answers at once, or a faster machine")


def _main_part(request: RequestSeen, parts: dict[str, float]) -> str:
    """Waiting comes before work: an answer takes its time anyway."""
    if parts["preempted"] > request.total_s / 10:  # and the work that was lost comes on top
        return "preempted"
    waits = {name: parts[name] for name in ("before", "queued", "answer")}
    longest = max(waits, key=lambda each: waits[each])
    if waits[longest] >= request.total_s / 4:
        return longest
    return "prefill" if parts["prefill"] > parts["decode"] else "decode"


class _Seen(NamedTuple):
    request: RequestSeen
    model: ModelHistory
    record: BatchRecord
    event: BatchFinished
    item: Item
    parts: dict[str, float]


def _rerun(lost: Sequence[BatchLost], item: Item) -> Cause:
    last = lost[-1]
    spent_s = last.lost_at - item.arrived_at
    times = "twice" if len(lost) == 2 else "once" if len(lost) == 1 else f"{len(lost)} times"
    why = (
        f"the worker that ran it was lost {times} ({last.reason}): {_ms(spent_s)} were lost, "
        "then it ran again"
    )
    return Cause("rerun", why, "a model that does not take its process down; see the log")


def _before(request: RequestSeen, before_s: float) -> Cause:
    loaded_s = request.loaded_s
    if loaded_s > before_s / _TWICE:
        why = f"its model was not loaded: it waited {_ms(loaded_s)} until it was"
        return Cause("cold_start", why, "a model that is loaded at the start, and stays")
    why = f"{_ms(before_s)} passed before it was queued: reading, checks, `prepare`"
    return Cause("reading", why, "smaller bodies, binary instead of JSON, a faster `prepare`")


def _queued(seen: _Seen) -> Cause:
    queued_s, item = seen.parts["queued"], seen.item
    until = item.arrived_at + queued_s
    ahead = [
        (min(until, ended_at) - max(item.arrived_at, record.event.batch.fired_at), record)
        for record in list(seen.model.batches)
        if (ended_at := _ended_at(record)) > item.arrived_at
        and record.event.batch.fired_at < until
        and record is not seen.record
    ]
    if not ahead:
        return Cause("queued", f"every worker was busy for {_ms(queued_s)}", "more workers")
    longest_s, longest = max(ahead, key=lambda each: each[0])
    batch = longest.event.batch
    ran_s = _ended_at(longest) - batch.fired_at
    if longest_s > queued_s / _TWICE and ran_s > _TWICE * seen.parts["run"]:
        why = (
            f"it waited behind a long batch: batch {batch.id} ({batch.rows} rows"
            f"{_sized(batch.size)}) took {_ms(ran_s)}, and no worker was free"
        )
        return Cause("long_batch", why, "more workers, a smaller max_batch_size or max_batch_cost")
    many = "1 batch" if len(ahead) == 1 else f"{len(ahead)} batches"
    why = f"{many} ran while it waited, and no worker was free"
    return Cause("behind_others", why, "more workers, or fewer requests")


def _lingered(seen: _Seen) -> Cause:
    lingered_s, batch = seen.parts["lingered"], seen.event.batch
    if lingered_s > batch.linger_cap_s + max(_SLACK_S, lingered_s / _TWICE):
        return _stall(seen, lingered_s - batch.linger_cap_s, batch.fired_at)
    why = (
        f"a worker was free, and waited {_ms(lingered_s)} for more items "
        f"(at most {_ms(batch.linger_cap_s)}); {len(batch.items)} left together"
    )
    return Cause("lingered", why, "a smaller max_wait_ms, or an slo_ms")


def _stall(seen: _Seen, seconds: float, until: float) -> Cause:
    if collection := _collection(seen, seconds, until):
        return collection
    why = f"the event loop was held up for {_ms(seconds)}: other code ran in it"
    return Cause("stall", why, "code that does not block the event loop: `def` instead of `async`")


def _collection(seen: _Seen, seconds: float, until: float) -> Cause | None:
    """Did garbage collections take most of this time?"""
    collected_s = sum(
        min(each.ended_at, until) - max(each.began_at, until - seconds)
        for each in list(seen.model.pauses)
        if each.began_at < until and each.ended_at > until - seconds
    )
    if collected_s <= seconds / _TWICE:
        return None
    why = f"a garbage collection held everything up for {_ms(collected_s)}"
    return Cause("stall", why, "fewer objects that live long; gc.freeze() after loading")


def _ran(seen: _Seen) -> Cause:
    event, batch = seen.event, seen.event.batch
    if collection := _collection(seen, seen.parts["run"], event.finished_at):
        return collection
    apart_s = seen.parts["run"] - event.ran_s
    if apart_s > max(_SLACK_S, seen.parts["run"] / _TWICE):
        why = (
            f"the model ran for {_ms(event.ran_s)} of the {_ms(seen.parts['run'])} between leaving "
            "the queue and coming back"
        )
        return Cause("handover", why, "free CPUs, or smaller arrays to and from a worker process")
    others = [
        each.event
        for each in list(seen.model.batches)
        if isinstance(each.event, BatchFinished) and each is not seen.record
    ]
    if event.reruns:
        why = f"an item of batch {batch.id} failed: the model was called {event.reruns} times more"
        return Cause("reran", why, "inputs that the model can take")
    alike = [each.ran_s for each in others if each.batch.rows >= batch.rows]
    is_first = all(each.batch.worker != batch.worker or each.batch.id > batch.id for each in others)
    if is_first and len(alike) >= _ENOUGH and event.ran_s > _TWICE * median(alike):
        why = (
            f"it was in the first batch of its worker, which took {_ms(event.ran_s)}; later ones "
            f"take {_ms(median(alike))}"
        )
        return Cause("cold_start", why, "a warm-up: warm_up = true")
    return _padded(seen, others) or _model(seen)


def _padded(seen: _Seen, others: Iterable[BatchFinished]) -> Cause | None:
    """A neighbour is to blame only if batches of this item's size were seen to be faster."""
    batch, item = seen.event.batch, seen.item
    if not batch.size or item.size * _TWICE > batch.size or batch.is_packed:
        return None
    short = [each.ran_s for each in others if each.batch.size <= item.size * _TWICE]
    if not short or seen.event.ran_s < _TWICE * median(short):
        return None
    longest = max(batch.items, key=lambda each: each.size)
    why = (
        f"it was padded from {item.size} to {batch.size} for item {longest.id} in its batch; "
        f"batches of its own size take {_ms(median(short))} instead of {_ms(seen.event.ran_s)}"
    )
    return Cause("padded", why, "compose = 'buckets', or a smaller max_batch_cost")


def _model(seen: _Seen) -> Cause:
    event, expected_s = seen.event, seen.event.batch.predicted_s
    if expected_s is not None and event.ran_s > _TWICE * expected_s + _SLACK_S:
        why = f"the model took {_ms(event.ran_s)}, {_ms(expected_s)} were expected"
        return Cause("slow_run", why, "a look at what else ran on the machine")
    why = f"the model took {_ms(event.ran_s)} for {event.batch.rows} rows"
    return Cause("model", why, "a faster model or machine, or a smaller max_batch_size")


def _answer(seen: _Seen) -> Cause:
    if seen.request.is_stream:
        return _slow_reader(_ms(seen.parts["answer"]))
    told_s = seen.record.seen_at - seen.event.finished_at
    if told_s > max(_SLACK_S, seen.parts["answer"] / _TWICE):
        return _stall(seen, told_s, seen.record.seen_at)
    why = f"its answer took {_ms(seen.parts['answer'])} to be encoded and sent"
    return Cause("answer", why, "smaller answers, or binary instead of JSON")


def _slow_reader(seconds: str) -> Cause:
    why = f"its client took {seconds} to read what had been made"
    return Cause("slow_reader", why, "a client that reads as fast as the answer comes")


_CAUSES = {
    "before": lambda seen: _before(seen.request, seen.parts["before"]),
    "queued": _queued,
    "lingered": _lingered,
    "run": _ran,
    "answer": _answer,
}


def _ended_at(record: BatchRecord) -> float:
    event = record.event
    return event.finished_at if isinstance(event, BatchFinished) else event.lost_at


def _sized(size: int) -> str:
    return f" of size {size}" if size else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e3:.3f} ms"


# ---- in words


def lines_of(story: RequestStory) -> list[str]:
    """The story for a terminal."""
    request = story.request
    lines = [f"request {request.id or '(without an id)'}: {_ms(request.total_s)}, {request.what}"]
    timeline = _timeline(story) if story.answer is None else _answer_timeline(story, story.answer)
    lines += [f"  {_ms(at):>10}  {what}" for at, what in timeline]
    if story.model is not None:
        shares = ", ".join(
            f"{round(100 * part_s / max(request.total_s, 1e-9))} % {name}"
            for name, part_s in story.parts.items()
        )
        lines.append(f"  time: {shares}")
    lines.append(f"  cause: {story.cause.word}: {story.cause.why}")
    if story.cause.advice:
        lines.append(f"  would change it: {story.cause.advice}")
    return lines


def _timeline(story: RequestStory) -> Iterator[tuple[float, str]]:
    if story.record is None or story.item is None or story.model is None:
        return
    item, event, start = story.item, story.record.event, story.request.started_at
    batch, count = event.batch, story.request.item_count
    sized = f" of size {item.size}" if item.size else ""
    which = f"item {item.id}{sized}" if count == 1 else f"{count} items; the last was {item.id}"
    yield item.arrived_at - start, f"queued at {story.model.model}: {which}"
    yield batch.fired_at - start, f"left in {batch_line(story.record)}"
    expected = "" if batch.predicted_s is None else f", {_ms(batch.predicted_s)} expected"
    ran_s = event.ran_s if isinstance(event, BatchFinished) else 0.0
    padding = f"; {round(100 * batch.padding)} % was padding" if batch.padding else ""
    yield _ended_at(story.record) - start, f"the model was done: {_ms(ran_s)}{expected}{padding}"
    failed = f" with {story.request.code}" if story.request.code else ""
    yield story.request.total_s, f"answered{failed}"


def _answer_timeline(story: RequestStory, answer: AnswerRecord) -> Iterator[tuple[float, str]]:
    request = story.request
    model, start = "" if story.model is None else story.model.model, request.started_at
    which = "" if request.item_count == 1 else f" (of {request.item_count}, the last one)"
    awaited = answer.awaited_tokens
    waited_for = f" ({awaited} since another answer had computed them)" if awaited else ""
    yield (
        answer.arrived_at - start,
        f"queued at {model}: sequence {answer.sequence}{which}, a prompt of "
        f"{answer.prompt_tokens} tokens, {answer.cached_tokens} of them cached{waited_for}",
    )
    if answer.admitted_at is not None:
        yield answer.admitted_at - start, f"begun; its prompt took {answer.chunks} steps"
    if answer.first_at is not None:
        yield answer.first_at - start, "its first token"
    preempted = f", preempted {answer.preemptions} times" if answer.preemptions else ""
    yield answer.ended_at - start, f"generated: {answer.tokens} tokens, {answer.code}{preempted}"
    failed = f" with {request.code}" if request.code else ""
    yield request.total_s, f"answered{failed}"


def batch_line(record: BatchRecord) -> str:
    """Which batch it is, and why it left."""
    batch = record.event.batch
    many = "1 item" if len(batch.items) == 1 else f"{len(batch.items)} items"
    rows = "1 row" if batch.rows == 1 else f"{batch.rows} rows"
    return (
        f"batch {batch.id} on worker {batch.worker}: {many} with {rows}, where at most "
        f"{batch.batch_cap} would have paid; {batch.reason.value}: {REASONS[batch.reason]}"
    )
