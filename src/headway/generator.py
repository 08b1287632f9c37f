"""`Generator`: a language model in your own process, many answers computed together.

```python
async with headway.Generator("chat") as generator:
    async for piece in generator.stream("Once upon a time", max_tokens=40):
        print(piece.text, end="")
```
"""

import asyncio
import contextlib
import functools
import itertools
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Finished, FinishReason
from headway.core.generation.sequence import Sequence as Asked
from headway.core.items import Priority
from headway.errors import Closed, ConfigError, DeadlineExceeded, HeadwayError, InvalidInput
from headway.runtime.adapters import AdapterBook
from headway.runtime.generating import GenerationLoad, Output, StepRunner
from headway.runtime.generation.thread import GenerationThread

if TYPE_CHECKING:
    from headway.models.chat.text import ChatText

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
_MOST_STOPS = 16
_LONGEST_STOP = 1000


class Piece(NamedTuple):
    """A part of an answer, as it came: perhaps without text, where a character is not whole yet."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Any, ...] = ()
    finish_reason: str | None = None  # of the last piece only: stop or length


_new_piece = cast("Callable[[tuple[Any, ...]], Piece]", functools.partial(tuple.__new__, Piece))


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    logprobs: tuple[Any, ...] = ()
    details: Finished | None = field(default=None, repr=False)  # what it met on its way


class Generator:
    """A language model: a folder of safetensors, a GGUF file, `chat`, or a name on the hub.

    `max_context` bounds prompt and answer together, `max_sequences` how many run at once,
    `step_tokens` how many tokens one step computes, `kv_cache_gib` the memory for the cache.
    Without `share_prefixes`, answers to one prompt still share its blocks, but nothing else does.
    `adapters` are LoRA adapters by name, folders as PEFT saves them; `adapter_slots` of them are in
    a step together.
    """

    def __init__(
        self,
        target: str,
        *,
        max_context: int | None = None,
        max_sequences: int | None = None,
        step_tokens: int = 512,
        kv_cache_gib: float | None = None,
        dtype: str = "auto",
        device: str = "auto",
        share_prefixes: bool = True,
        threads: int | None = None,
        quantization: str = "none",
        adapters: Mapping[str, str | Path] | None = None,
        adapter_slots: int | None = None,
        max_adapter_rank: int | None = None,
    ) -> None:
        self._target = target
        self._options: dict[str, Any] = {
            "max_context": max_context,
            "max_sequences": max_sequences,
            "step_tokens": step_tokens,
            "kv_cache_gib": kv_cache_gib,
            "dtype": dtype,
            "device": device,
            "threads": threads,
            "quantization": quantization,
            "adapter_slots": adapter_slots,
            "max_adapter_rank": max_adapter_rank,
            "adapters": bool(adapters or adapter_slots),
        }
        self._adapters = dict(adapters or {})
        self._ids = itertools.count()
        self._book = AdapterBook(target)
        self._share_prefixes = share_prefixes
        self._streams: dict[int, _Outputs] = {}
        self._thread: GenerationThread | None = None
        self._text: ChatText | None = None
        self._max_context = 0

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._start)
        try:
            for name, folder in self._adapters.items():
                await self._book.load_at_start(name, folder)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self._thread.close)

    def _start(self) -> None:
        from headway.models.chat.finding import find_language_model
        from headway.models.chat.text import ChatText

        folder = find_language_model(self._target)
        self._text = ChatText(folder)

        self._thread = GenerationThread(lambda: self._make_engine(folder), self._report)
        self._thread.start()
        self._book.connect(self._thread)
        self._max_context = self._thread.limits.max_context

    def _make_engine(self, folder: Path) -> StepRunner:
        try:
            from headway.engine.starting import EngineOptions, start
        except ImportError as error:
            raise ConfigError("language models need pip install 'headway[llm]'") from error
        return start(folder, EngineOptions(**self._options))

    @property
    def load(self) -> GenerationLoad:
        """How busy it is now."""
        if self._thread is None:
            raise Closed("the generator has not started: use `async with`")
        return self._thread.load

    # ---- adapters

    @property
    def adapters(self) -> list[str]:
        """The names that `adapter` may have."""
        return [each.name for each in self._book.entries()]

    async def load_adapter(self, name: str, folder: str | Path) -> None:
        """Answers go on meanwhile. One that has the name already is replaced.

        Raises ConfigError for a folder that cannot be used.
        """
        await self._book.load(name, folder, replaces=True)

    async def unload_adapter(self, name: str) -> None:
        """Answers under way go on to their end. Raises UnknownModel."""
        await self._book.unload(name)

    # ---- asking

    async def generate(self, prompt: Prompt, **wishes: Any) -> Answer:
        """The whole answer. Takes what `stream` takes."""
        request = await self._request(prompt, wishes)
        texts: list[str] = []
        tokens: list[int] = []
        logprobs: list[Any] = []
        with self._running(request) as outputs:
            while request.finished is None:
                await outputs.wait()
                for output in outputs.take():
                    piece = self._piece_of(request, output)
                    if piece is not None:
                        texts.append(piece.text)
                        tokens += piece.tokens
                        logprobs += piece.logprobs
        assert request.finish_reason is not None
        return Answer(
            text="".join(texts),
            tokens=tuple(tokens),
            finish_reason=request.finish_reason,
            prompt_tokens=len(request.sequence.prompt),
            cached_tokens=request.finished.cached_tokens,
            logprobs=tuple(logprobs),
            details=request.finished,
        )

    async def many(self, prompts: Iterable[Prompt], **wishes: Any) -> list[Answer]:
        """The answers to several prompts, in their order. One that fails fails them all."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.generate(prompt, **wishes)) for prompt in prompts]
        return [task.result() for task in tasks]

    async def stream(self, prompt: Prompt, **wishes: Any) -> AsyncIterator[Piece]:
        """An answer piece by piece. The prompt is a text, token ids, or a chat's messages.

        Takes the fields of `Sampling` (temperature, top_p, seed, …), `max_tokens`, `min_tokens`,
        `stop` (texts that end the answer), `ignore_eos`, `priority`, `tenant`, `deadline_ms`,
        `adapter`.
        """
        request = await self._request(prompt, wishes)
        with self._running(request) as outputs:
            while request.finished is None:
                await outputs.wait()
                for output in outputs.take():
                    piece = self._piece_of(request, output)
                    if piece is not None:
                        yield piece

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The token ids that a prompt becomes."""
        if self._text is None:
            raise Closed("the generator has not started: use `async with`")
        if isinstance(prompt, str):
            return self._text.encode(prompt)
        if not isinstance(prompt, Sequence):
            expected = "a text, token ids or messages are expected"
            raise InvalidInput(f"prompt: {expected}, not {prompt!r:.40}")
        if prompt and isinstance(prompt[0], int):
            return [self._token_id(each) for each in prompt]
        return self._text.encode_chat(prompt)  # type: ignore[arg-type]

    def _token_id(self, value: Any, field: str = "prompt") -> int:
        assert self._thread is not None
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInput(f"{field}: holds {value!r} among token ids")
        if not 0 <= value < self._thread.vocabulary:
            raise InvalidInput(f"{field}: there is no token {value}")
        return value

    async def _request(self, prompt: Prompt, wishes: dict[str, Any]) -> "_Request":
        if self._text is None:
            raise Closed("the generator has not started: use `async with`")
        ids = await asyncio.to_thread(self.tokens_of, prompt)
        adapter = self._book.key_of(wishes.pop("adapter", ""))
        wishes = {"share_prefixes": self._share_prefixes, "adapter": adapter, **wishes}
        request = _Request(next(self._ids), ids, self._text, self._max_context, wishes)
        for token in request.sampling.logit_bias:
            self._token_id(token, "logit_bias")
        return request

    @contextlib.contextmanager
    def _running(self, request: "_Request") -> Iterator["_Outputs"]:
        """In the engine, until it has ended or its caller leaves."""
        assert self._thread is not None
        number = request.sequence.id
        outputs = self._streams[number] = _Outputs(asyncio.get_running_loop())
        try:
            self._thread.submit(request.sequence, request.sampling)
            yield outputs
        finally:
            del self._streams[number]
            if request.is_alive:
                with contextlib.suppress(Closed):
                    self._thread.cancel(number)

    def _piece_of(self, request: "_Request", output: Output) -> Piece | None:
        piece = request.piece_of(output)
        if request.is_alive and request.finish_reason is not None:
            assert self._thread is not None
            self._thread.cancel(request.sequence.id)  # a stop string: the engine knows no text
            request.is_alive = False
        return piece

    # ---- what comes back

    def _report(self, outputs: Sequence[Output]) -> None:
        """In the engine's thread: one call for all sequences of a step that a loop reads."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Outputs, Output]]] = {}
        for output in outputs:
            stream = self._streams.get(output.sequence)
            if stream is not None:
                by_loop.setdefault(stream.loop, []).append((stream, output))
        for loop, found in by_loop.items():
            with contextlib.suppress(RuntimeError):  # it is closed: nobody reads there any more
                loop.call_soon_threadsafe(_deliver, found)


class _Outputs:
    """What has come for one answer, and its reader. In its reader's event loop."""

    __slots__ = ("_come", "_waiter", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._come: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None  # while nothing has come

    def put(self, output: Output) -> None:
        self._come.append(output)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def wait(self) -> "asyncio.Future[None]":
        """Done when something has come. No coroutine: that is one more call a token."""
        waiter = self.loop.create_future()
        if self._come:
            waiter.set_result(None)
        else:
            self._waiter = waiter
        return waiter

    def take(self) -> list[Output]:
        come, self._come = self._come, []
        return come


def _deliver(found: Sequence[tuple[_Outputs, Output]]) -> None:
    for stream, output in found:
        stream.put(output)


class _Request:
    """One answer on its way."""

    def __init__(
        self,
        number: int,
        ids: list[int],
        text: "ChatText",
        max_context: int,
        wishes: dict[str, Any],
    ) -> None:
        from headway.models.chat.text import Detokenizer

        share_prefixes = wishes.pop("share_prefixes")
        stops = _stops(wishes.pop("stop", None))
        ignore_eos = wishes.pop("ignore_eos", False)
        deadline_ms = wishes.pop("deadline_ms", None)
        now = time.monotonic()
        self.sequence = Asked(
            id=number,
            arrived_at=now,
            prompt=tuple(ids),
            max_tokens=_count("max_tokens", wishes.pop("max_tokens", None), max_context - len(ids)),
            min_tokens=_count("min_tokens", wishes.pop("min_tokens", None), 0),
            stop_ids=frozenset() if ignore_eos else text.stop_ids,
            priority=_priority(wishes.pop("priority", "normal")),
            tenant=wishes.pop("tenant", ""),
            deadline=math.inf if deadline_ms is None else now + deadline_ms / 1e3,
            adapter=wishes.pop("adapter"),
            salt="" if share_prefixes else f"{number}",
        )
        wishes.setdefault("seed", secrets.randbits(63))
        try:
            self.sampling = Sampling(**wishes)
        except TypeError as error:
            name = str(error).rpartition("argument ")[2]
            raise InvalidInput(f"{name}: is an unknown option") from None
        self._detokenizer = Detokenizer(text, stops)
        self.finished: Finished | None = None
        self.finish_reason: str | None = None
        self.is_alive = True  # in the engine

    def piece_of(self, output: Output) -> Piece | None:
        """What of it the caller sees. Raises what ended it, if that was an error."""
        _, token, logprobs, finished, error = output
        is_middle = finished is None and error is None and self.finish_reason is None
        if is_middle and token is not None and logprobs is None:
            text = self._detokenizer.known.get(token)
            if text:  # the hot path
                return _new_piece((text, (token,), (), None))
        return self._any_piece_of(token, logprobs, finished, error)

    def _any_piece_of(
        self,
        token: int | None,
        logprobs: Any,
        finished: Finished | None,
        error: HeadwayError | None,
    ) -> Piece | None:
        if error is not None:
            self.is_alive = False
            raise error
        if finished is not None:
            self.finished, self.is_alive = finished, False
            if finished.reason is FinishReason.DEADLINE:
                raise DeadlineExceeded("the deadline passed before the answer was complete")
        if token is None or self.finish_reason is not None:
            return None  # it came from a step that was on its way when a stop string was found
        is_stop_id = finished is not None and finished.reason is FinishReason.STOP
        text = "" if is_stop_id else self._detokenizer.step(token)
        if finished is not None or self._detokenizer.is_stopped:
            self.finish_reason = "length"
            if is_stop_id or self._detokenizer.is_stopped:
                self.finish_reason = "stop"
            text += self._detokenizer.finish()
        return Piece(text, (token,), () if logprobs is None else (logprobs,), self.finish_reason)


def _stops(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MOST_STOPS:
        raise InvalidInput(f"stop: at most {_MOST_STOPS} texts")
    for each in stops:
        if not isinstance(each, str) or not 0 < len(each) <= _LONGEST_STOP:
            raise InvalidInput(f"stop: each is a text of up to {_LONGEST_STOP} characters")
    return stops


def _count(name: str, value: Any, default: int) -> int:
    if value is None:
        return max(default, 1) if name == "max_tokens" else default
    least = 1 if name == "max_tokens" else 0
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name}: must be a whole number from {least} on, not {value!r}")
    return value


def _priority(name: Any) -> Priority:
    try:
        return Priority[str(name).upper()]
    except KeyError:
        raise InvalidInput(f"priority: {name!r} is not one of high, normal, low") from None
