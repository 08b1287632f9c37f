"""`Generator`: a language model in your own process, many answers computed together.

```python
async with headway.Generator("chat") as generator:
    async for piece in generator.stream("Once upon a time", max_tokens=40):
        print(piece.text, end="")
```

Prompts, options and pieces are read and made by the code that serves language models
(`headway.hosting.generation`); here are the engine's thread and a reader for each answer.
"""

import asyncio
import functools
import itertools
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from headway.core.generation.options import generation_options
from headway.core.generation.sequence import Finished
from headway.errors import Closed
from headway.runtime.batching.entrance import deadline_at
from headway.runtime.calling.inputs import check_tenant, priority_of
from headway.runtime.generation.adapter_book import AdapterBook
from headway.runtime.generation.loop import GenerationLoad, SequenceOutput, StepRunner
from headway.runtime.generation.thread import GenerationThread

if TYPE_CHECKING:
    from headway.hosting.generation.frontend import Front
    from headway.hosting.generation.language import Language
    from headway.hosting.registry import Ask
    from headway.models.chat.model import LanguageModel
    from headway.runtime.driving.streams import OpenStream

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


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
        self._target, self._threads = target, threads
        self._options: dict[str, Any] = {
            "max_context": max_context,
            "max_sequences": max_sequences,
            "step_tokens": step_tokens,
            "kv_cache_gib": kv_cache_gib,
            "dtype": dtype,
            "device": device,
            "quantization": quantization,
            "adapter_slots": adapter_slots,
            "max_adapter_rank": max_adapter_rank,
            "adapters": bool(adapters or adapter_slots),
        }
        self._adapters = dict(adapters or {})
        self._ids = itertools.count(1)
        self._book = AdapterBook(target)
        self._share_prefixes = share_prefixes
        self._fronts: dict[asyncio.AbstractEventLoop, Front] = {}
        self._thread: GenerationThread | None = None
        self._language: Language | None = None

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
        if self._language is not None:
            self._language.close()

    def _start(self) -> None:
        from headway.hosting.generation.language import Language

        model = self._language_model()
        text = model.text()
        self._thread = thread = GenerationThread(
            lambda: cast(StepRunner, model.engine(self._options)), self._report
        )
        thread.start()
        self._book.connect(thread)
        self._language = Language(
            text, vocabulary=thread.vocabulary, max_context=thread.limits.max_context
        )

    def _language_model(self) -> "LanguageModel":
        from headway.models.chat.model import LanguageModel

        return LanguageModel(self._target, threads=self._threads)

    @property
    def load(self) -> GenerationLoad:
        """The present load."""
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

    async def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """The whole answer. Takes what `stream` takes."""
        reading = _Reading(self._open(prompt, options))
        pieces = [piece async for piece in reading.pieces()]
        finished = reading.finished
        assert finished is not None
        return Answer(
            text="".join(each.text for each in pieces),
            tokens=tuple(token for each in pieces for token in each.tokens),
            finish_reason=pieces[-1].finish_reason or "",
            prompt_tokens=reading.prompt_tokens,
            cached_tokens=finished.cached_tokens,
            logprobs=tuple(logprobs for each in pieces for logprobs in each.logprobs),
            details=finished,
        )

    async def many(self, prompts: Iterable[Prompt], **options: Any) -> list[Answer]:
        """The answers to several prompts, in their order. One that fails fails them all."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.generate(prompt, **options)) for prompt in prompts]
        return [task.result() for task in tasks]

    def stream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[Piece, None]:
        """An answer piece by piece. The prompt is a text, token ids, or a chat's messages.

        Takes the fields of `Sampling` (temperature, top_p, seed, …), `max_tokens`, `min_tokens`,
        `stop` (texts that end the answer), `stop_token_ids`, `ignore_eos`, `cache_salt`,
        `priority`, `tenant`, `deadline_ms`, `adapter`.
        """
        return _Reading(self._open(prompt, options)).pieces()

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The token ids that a prompt becomes."""
        return self._started().tokens_of(prompt)

    def _started(self) -> "Language":
        if self._language is None:
            raise Closed("the generator has not started: use `async with`")
        return self._language

    async def _open(self, prompt: Prompt, options: dict[str, Any]) -> "_Opened":
        from headway.hosting.generation.pieces import Generation

        language = self._started()
        ask = _ask_of(options)
        if not self._share_prefixes:
            options.setdefault("cache_salt", secrets.token_hex(16))
        sampling = generation_options({**language.defaults, **options})
        language.check_named(sampling)
        ids = await language.read(prompt)
        asked = Generation((tuple(ids),), sampling, shows_empty=True, shows_end=True)
        return _Opened(self._front().open(asked, ask), len(ids))

    def _front(self) -> "Front":
        """The front of the running event loop."""
        from headway.hosting.generation.frontend import Front
        from headway.observe.generation import GenerationRecorder

        loop = asyncio.get_running_loop()
        front = self._fronts.get(loop)
        if front is None:
            for other in [each for each in list(self._fronts) if each.is_closed()]:
                self._fronts.pop(other, None)
            assert self._thread is not None
            text, recorder = self._started().text, GenerationRecorder()
            front = Front(text, recorder, self._book, is_shared=True, ids=self._ids)
            front.connect(self._thread, max_context=self._thread.limits.max_context)
            self._fronts[loop] = front
        return front

    def _report(self, outputs: Sequence[SequenceOutput]) -> None:
        """Called in the engine's thread. Each front takes its own sequences."""
        for front in list(self._fronts.values()):
            front.report(outputs)


class _Opened(NamedTuple):
    stream: "OpenStream"
    prompt_tokens: int


class _Reading:
    """One answer's pieces and its reader, in the reader's event loop.

    Not `async for` over the stream: that would be several more calls for each token.
    """

    __slots__ = ("_opening", "_waiter", "finished", "prompt_tokens")

    def __init__(self, opening: Coroutine[Any, Any, _Opened]) -> None:
        self._opening = opening
        self._waiter: asyncio.Future[None] | None = None  # set while there is no piece
        self.finished: Finished | None = None
        self.prompt_tokens = 0

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        stream, self.prompt_tokens = await self._opening
        loop = asyncio.get_running_loop()
        stream.attach(self._wake)
        try:
            while not stream.is_at_end():
                come = stream.take()
                for _, text, token, logprobs, reason, finished, *_ in come:
                    tokens = () if token is None else (token,)
                    shown = () if logprobs is None else (logprobs,)
                    self.finished = finished
                    yield _new_piece((text, tokens, shown, reason))
                if not come:
                    self._waiter = loop.create_future()
                    await self._waiter
        finally:
            stream.close()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _ask_of(options: dict[str, Any]) -> "Ask":
    """Takes what is not for the model out of the options. Raises InvalidInput."""
    from headway.hosting.registry import Ask

    names = ("priority", "tenant", "deadline_ms", "adapter")
    ask = Ask(**{name: options.pop(name) for name in names if name in options})
    priority_of(ask.priority)
    check_tenant(ask.tenant)
    deadline_at(0.0, ask.deadline_ms)
    return ask
