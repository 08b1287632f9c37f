"""The front's side of the sequences under way: text out of tokens, stop strings, readers.

The engine's side reports once a step the new tokens of all sequences (`report`, from any thread);
one turn of the event loop then serves every reader. Knows no protocol.
"""

import asyncio
import dataclasses
import functools
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, cast

from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Finished, FinishReason
from headway.core.generation.sequence import Sequence as Asked
from headway.core.items import Priority
from headway.core.queueing.quota import Allowance
from headway.errors import Closed, DeadlineExceeded, HeadwayError, ModelFailed
from headway.hosting.explaining import GenerationTimes
from headway.hosting.generation.pieces import AnswerPiece, Generation
from headway.hosting.registry import Ask
from headway.model import END
from headway.models.chat.text import ChatText, Detokenizer
from headway.observe.generation import GenerationRecorder
from headway.observe.history import ModelHistory
from headway.runtime.driving.streams import OpenStream, StreamCall, wake_all
from headway.runtime.generation.adapter_book import AdapterBook, Answer
from headway.runtime.generation.loop import PlainTokens, SequenceOutput, parted

_SEEDS = 1 << 63
_new_piece = cast(
    "Callable[[tuple[Any, ...]], AnswerPiece]", functools.partial(tuple.__new__, AnswerPiece)
)


class Engine(Protocol):
    """The engine: a thread here, or a process of its own."""

    def submit(self, sequence: Asked, sampling: Sampling) -> None: ...

    def cancel(self, sequence: int) -> None: ...

    def load_adapter(self, adapter: str, folder: str) -> Answer: ...

    def unload_adapter(self, adapter: str) -> Answer: ...


class Front:
    """The sequences under way and their readers. Used in one event loop, except for `report`."""

    def __init__(
        self,
        text: ChatText,
        recorder: GenerationRecorder,
        adapters: AdapterBook,
        *,
        is_shared: bool,
        idle: Callable[[], None] = lambda: None,
        ids: Iterator[int] | None = None,
        history: ModelHistory | None = None,
    ) -> None:
        """`is_shared`: tenants share cached prefixes. `idle`: called when the last request ends.
        `ids`: numbers for the sequences, where several fronts share an engine. `history`: keeps
        the answers that have ended."""
        self._text = text
        self._recorder = recorder
        self._max_context = 0
        self._is_shared = is_shared
        self._idle = idle
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1) if ids is None else ids
        self._answers: dict[int, _Answer] = {}  # by sequence
        # Answers that nobody reads any more but that hold a reservation, until the engine reports.
        self._left: dict[int, _Answer] = {}
        self._requests: dict[StreamCall, _Request] = {}
        self._engine: Engine | None = None
        self.adapters = adapters

    def connect(self, engine: Engine, *, max_context: int) -> None:
        self._engine, self._max_context = engine, max_context

    @property
    def is_busy(self) -> bool:
        return bool(self._requests)

    def open(self, asked: Generation, ask: Ask) -> OpenStream:
        """Queue the sequences of `asked`. Their pieces come as one stream. Raises Closed, NotReady,
        QueueFull, QuotaExceeded."""
        assert self._engine is not None
        adapter = self.adapters.key_of(ask.adapter)
        now = time.monotonic()
        unassigned = self._most_tokens(asked)  # reserved tokens that no answer has yet
        if ask.allowance is not None:
            ask.allowance.reserve_tokens(unassigned, now)
        call = StreamCall(0, asked, self._loop)
        request = self._requests[call] = _Request(call)
        seed = asked.options.sampling.seed if asked.options.is_seeded else secrets.randbits(62)
        shown = {} if asked.reading is None else asked.reading.shown
        for index in range(asked.count):
            number = next(self._ids)
            sequence = self._sequence(number, asked, index, ask, now)
            if adapter:
                sequence = sequence._replace(adapter=adapter)
            answer = _Answer(
                index,
                request,
                Detokenizer(self._text, asked.options.stops, shown),
                now,
                explains=ask.story is not None,
                asked=asked,
                adapter=ask.adapter,
            )
            own_seed = (seed + index % asked.n) % _SEEDS
            sampling = dataclasses.replace(asked.options.sampling, seed=own_seed)
            try:
                self._engine.submit(sequence, sampling)
            except HeadwayError:  # the engine never reports an end of this answer
                if ask.allowance is not None:
                    ask.allowance.refund_tokens(unassigned, now)
                self._withdraw(call)
                raise
            if ask.allowance is not None:
                reserved = len(sequence.prompt) + sequence.max_tokens
                unassigned -= reserved
                answer.reservation = _Reservation(ask.allowance, len(sequence.prompt), reserved)
            request.sequences.add(number)
            if self._history is not None:
                self._history.queued((number,))
            self._answers[number] = answer
            self._recorder.prompt(len(sequence.prompt))
        return OpenStream(call, self._withdraw)

    def _most_tokens(self, asked: Generation) -> int:
        """The most tokens that all answers can have, prompts included."""
        most = asked.options.max_tokens
        return asked.n * sum(
            len(prompt) + (self._room(prompt) if most is None else most) for prompt in asked.prompts
        )

    def _room(self, prompt: tuple[int, ...]) -> int:
        return max(1, self._max_context - len(prompt))

    def _sequence(self, number: int, asked: Generation, index: int, ask: Ask, now: float) -> Asked:
        options = asked.options
        prompt = asked.prompts[index // asked.n]
        tenant = "" if self._is_shared else ask.tenant
        is_salted = bool(tenant or options.cache_salt)
        salt = f"{len(tenant)}:{tenant}{options.cache_salt}" if is_salted else ""
        if options.sampling.scores_prompt:  # what is taken from the cache is not computed
            salt = f"-{number}"
        own = frozenset() if options.ignore_eos else self._text.stop_ids
        return Asked(
            id=number,
            arrived_at=now,
            prompt=prompt,
            max_tokens=self._room(prompt) if options.max_tokens is None else options.max_tokens,
            min_tokens=options.min_tokens,
            stop_ids=own | options.stop_ids,
            priority=Priority[ask.priority.upper()],
            tenant=ask.tenant,
            deadline=math.inf if ask.deadline_ms is None else now + ask.deadline_ms / 1e3,
            salt=salt,
        )

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call it in the event loop. May be called from any thread."""
        with suppress(RuntimeError):  # the loop is closed, and with it every caller's connection
            self._loop.call_soon_threadsafe(function)

    # ---- the engine's outputs

    def report(self, outputs: Sequence[SequenceOutput]) -> None:
        """Deliver the new tokens of all sequences of a step. May be called from any thread."""
        if outputs:
            self.call_soon(lambda: self.deliver(*parted(outputs)))

    def deliver(self, plain: PlainTokens, outputs: Sequence[SequenceOutput]) -> None:
        """Deliver a step's outputs, in the event loop."""
        now = time.monotonic()
        step_size = len(plain.tokens)
        if outputs:
            step_size += sum(each.token is not None for each in outputs)
        self._recorder.step(step_size, now)
        news: list[StreamCall] = []  # those with something new for their readers
        self._write(plain, step_size, now, news)
        for output in outputs:
            answer = self._answers.get(output.sequence)
            if answer is not None:
                self._take(answer, output, step_size, now, news)
            elif self._left:
                self._settle_left(output)
        wake_all(news)
        for call in [call for call in news if call.has_ended]:
            if call in self._requests:  # failed, or its reader is too slow
                self._withdraw(call)

    def _write(
        self, plain: PlainTokens, step_size: int, now: float, news: list[StreamCall]
    ) -> None:
        """The hot path: all tokens but an answer's first and last."""
        answers = self._answers
        gaps: dict[float, int] = {}  # how many tokens came, by the time of the token before
        for sequence, token in zip(plain.sequences, plain.tokens, strict=True):
            answer = answers.get(sequence)
            if answer is None:
                continue  # its caller has left
            since = answer.since
            text = answer.detokenizer.known.get(token)
            if since is None or not text:  # its first; or its text needs more than a look
                self._take(answer, SequenceOutput(sequence, token), step_size, now, news)
                continue
            gaps[since] = gaps.get(since, 0) + 1
            answer.since = now
            answer.tokens += 1  # as `_count` has it, without a call for every token
            if answer.batches is not None:
                answer.batches.append(step_size)
            call = answer.call
            if not call.has_ended:
                own = (answer.index, text, token, None, None, None, None, None, answer.cached)
                piece = _new_piece(own)
                call.put_chunk(piece)
                news.append(call)
        for since, count in gaps.items():
            self._recorder.between_tokens.add(now - since, count)

    def _take(
        self,
        answer: "_Answer",
        output: SequenceOutput,
        step_size: int,
        now: float,
        news: list[StreamCall],
    ) -> None:
        """Handle any output of an answer."""
        entry: AnswerPiece | HeadwayError | None
        try:
            entry = answer.take(output, step_size, now, self._recorder)
        except Exception as failure:  # noqa: BLE001  one answer's, not the step's
            entry = self._failed(answer, failure)
        if answer.is_to_cancel:
            self._stop(answer, output.sequence)
        if answer.call.put(entry):
            news.append(answer.call)
        if answer.is_over and self._history is not None:
            code = entry.code if isinstance(entry, HeadwayError) else entry and entry.finish_reason
            answer.tell(self._history, output, code or "")
        if answer.is_over and self._end(output.sequence, answer) and answer.call.put(END):
            news.append(answer.call)

    def _settle_left(self, output: SequenceOutput) -> None:
        if output.finished is not None or output.error is not None:
            answer = self._left.pop(output.sequence, None)
            if answer is not None:
                answer.note_computed(output)
                answer.settle()

    def _failed(self, answer: "_Answer", error: Exception) -> HeadwayError:
        if isinstance(error, HeadwayError):
            return error
        answer.since = None
        failed = ModelFailed(f"the answer's text cannot be made: {error}")
        failed.__cause__ = error
        return failed

    def _stop(self, answer: "_Answer", sequence: int) -> None:
        """End a sequence at a stop string, which the engine cannot see."""
        answer.is_to_cancel = False
        answer.since = None  # no token of it is shown any more
        self._cancel(sequence)

    def _end(self, sequence: int, answer: "_Answer") -> bool:
        """Whether it was the last answer of its request."""
        del self._answers[sequence]
        answer.settle()
        request = answer.request
        request.sequences.discard(sequence)
        if request.sequences:
            return False
        self._forget(request.call)
        return True

    def _forget(self, call: StreamCall) -> None:
        del self._requests[call]
        if not self._requests:
            self._idle()

    def _withdraw(self, call: StreamCall) -> None:
        """Cancel what is unfinished of a request that failed or that nobody reads any more. The
        engine frees its blocks before the next step that it has not begun."""
        request = self._requests.get(call)
        if request is None:
            return
        for sequence in request.sequences:
            answer = self._answers.pop(sequence)
            if answer.reservation is not None:
                self._left[sequence] = answer
            if not self._cancel(sequence):  # the engine will not report its end
                self._left.pop(sequence, answer).settle()
            self._recorder.finished("abort")
        request.sequences.clear()
        self._forget(call)

    def _cancel(self, sequence: int) -> bool:
        """Cancel a sequence. False: the engine is closed."""
        assert self._engine is not None
        try:
            self._engine.cancel(sequence)
        except Closed:
            return False
        return True


class _Request:
    """The answers that one caller reads."""

    __slots__ = ("call", "sequences")

    def __init__(self, call: StreamCall) -> None:
        self.call = call
        self.sequences: set[int] = set()  # not yet ended


class _Reservation(NamedTuple):
    """Tokens that a key has set aside for one answer."""

    allowance: Allowance
    prompt: int
    reserved: int


class _Answer:
    """The text of one sequence, and its times."""

    __slots__ = (
        *("_arrived_at", "_first_at", "_is_begun", "_prompt_tokens"),
        *("_shows_empty", "_shows_end_token"),
        *("adapter", "batches", "cached", "call", "choice", "detokenizer", "index"),
        *("is_over", "is_to_cancel", "request", "reservation", "since", "tokens"),
    )

    def __init__(
        self,
        index: int,
        request: _Request,
        detokenizer: Detokenizer,
        now: float,
        *,
        explains: bool,
        asked: Generation,
        adapter: str,
    ) -> None:
        self.request = request
        self.call = request.call
        self.index = index
        self.detokenizer = detokenizer
        self._arrived_at = now
        self._first_at = 0.0
        self._prompt_tokens = len(asked.prompts[index // asked.n])
        self.choice, self.adapter = index % asked.n, adapter
        self._shows_empty, self._shows_end_token = asked.shows_empty, asked.shows_end
        self.since: float | None = None  # when its last token came; None: before, and after a stop
        self.batches: list[int] | None = [] if explains else None  # of each step: its tokens
        self.tokens = self.cached = 0  # generated; of its prompt, in the cache
        self.reservation: _Reservation | None = None
        self._is_begun = False  # some of its prompt was computed
        self.is_over = False
        self.is_to_cancel = False

    def take(
        self, output: SequenceOutput, step_size: int, now: float, recorder: GenerationRecorder
    ) -> AnswerPiece | None:
        """The piece that the caller sees. Raises the error that ended the answer."""
        self.note_computed(output)
        if self.since is None:  # not of a later computation, after it was preempted
            self.cached = self.cached or output.cached
        if output.error is not None:
            self.is_over = True
            recorder.finished(output.error.code)
            raise output.error
        token, finished = output.token, output.finished
        if token is not None and not self.detokenizer.is_stopped:
            self._record(now, recorder)
            if finished is None:
                return self._middle(token, step_size, output.logprobs)
            self._count(step_size)
        if finished is None:
            return None  # a stop string was found while this token was computed
        return self._last(token, output.logprobs, finished, now, recorder)

    def note_computed(self, output: SequenceOutput) -> None:
        finished = output.finished
        was_admitted = finished is not None and finished.admitted_at is not None
        if was_admitted or type(output.error) is ModelFailed:  # a step failed
            self._is_begun = True

    def tell(self, history: ModelHistory, output: SequenceOutput, code: str) -> None:
        """Keep how it went."""
        history.ended(
            output.sequence,
            output.finished,
            arrived_at=self._arrived_at,
            first_at=self._first_at or None,
            prompt_tokens=self._prompt_tokens,
            tokens=self.tokens,
            code=code,
            choice=self.choice,
            adapter=self.adapter,
        )

    def settle(self) -> None:
        """The answer has ended: its key gets back unused tokens. A prompt is charged once its
        computation has begun, even if its caller saw no token."""
        if self.reservation is not None:
            allowance, prompt, reserved = self.reservation
            used = prompt + self.tokens if self.tokens or self._is_begun else 0
            allowance.refund_tokens(reserved - used, time.monotonic())

    def _record(self, now: float, recorder: GenerationRecorder) -> None:
        if self.since is not None:
            recorder.between_tokens.add(now - self.since)
        else:
            self._first_at = now
            recorder.first_token.add(now - self._arrived_at)
        self.since = now

    def _count(self, step_size: int) -> None:
        self.tokens += 1
        if self.batches is not None:
            self.batches.append(step_size)

    def _middle(self, token: int, step_size: int, logprobs: Any) -> AnswerPiece | None:
        """A token that is not the last."""
        self._count(step_size)
        text = self.detokenizer.step(token)
        if self.detokenizer.is_stopped:
            self.is_to_cancel = True
        if not text and logprobs is None and not self._shows_empty:
            return None
        return AnswerPiece(self.index, text, token, logprobs, cached=self.cached)

    def _last(
        self,
        token: int | None,
        logprobs: Any,
        finished: Finished,
        now: float,
        recorder: GenerationRecorder,
    ) -> AnswerPiece:
        self.is_over = True
        if finished.reason is FinishReason.DEADLINE:
            recorder.finished("deadline_exceeded")
            raise DeadlineExceeded("the deadline passed before the answer was complete")
        text = ""
        detokenizer = self.detokenizer
        is_end_token = finished.reason is FinishReason.STOP  # a stop id: it is no part of the text
        is_shown = token is not None and is_end_token and self._shows_end_token
        if token is not None and not is_end_token and not detokenizer.is_stopped:
            text, is_shown = detokenizer.step(token), True
        if not detokenizer.is_stopped:
            text += detokenizer.finish()
        reason = "stop" if is_end_token or detokenizer.is_stopped else "length"
        recorder.finished(reason)
        recorder.ended(
            seconds=now - self._arrived_at,
            queued_s=(finished.admitted_at or now) - self._arrived_at,
            finished=finished,
        )
        times = None if self.batches is None else self._met(finished, self.batches, now)
        if not is_shown:
            token = logprobs = None
        stopped_by = detokenizer.stopped_by
        return AnswerPiece(
            self.index, text, token, logprobs, reason, finished, times, stopped_by, self.cached
        )

    def _met(self, finished: Finished, batches: list[int], now: float) -> GenerationTimes:
        return GenerationTimes(
            queued_s=(finished.admitted_at or now) - self._arrived_at,
            first_token_s=(self._first_at or now) - self._arrived_at,
            took_s=now - self._arrived_at,
            prefill_chunks=finished.chunks,
            cached_tokens=finished.cached_tokens,
            awaited_tokens=finished.awaited_tokens,
            preemptions=finished.preemptions,
            steps=finished.tokens,
            batches=tuple(batches),
        )
