"""`/v1/completions`: prompts in, their continuations out. The older of OpenAI's two routes."""

import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

import msgspec
from msgspec import Meta

from headway.errors import InputTooLarge, InvalidInput
from headway.hosting.generation.language import Language
from headway.hosting.generation.pieces import AnswerPiece, Generation
from headway.hosting.registry import Ask, ServedModel
from headway.hosting.streaming import ServedStream
from headway.server.auth.access import Access
from headway.server.bodies.neutral import Neutral
from headway.server.families.openai.answers import (
    Completion,
    CompletionChoice,
    CompletionHead,
    UsageCount,
)
from headway.server.families.openai.generation_request import (
    COMPLETION,
    MOST_CHOICES,
    GenerationRequest,
    check_room,
    language_of,
    too_long,
)
from headway.server.families.openai.logprobs import (
    CompletionLogprobs,
    completion_logprobs,
    cut,
    joined,
    prompt_logprobs,
    prompt_scores,
)
from headway.server.families.openai.writer import Writer, answered
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_generator
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.wire.messages import Answer, Request

_encode = msgspec.json.Encoder().encode
_MAX_TOKENS = 16  # OpenAI's default


class CompletionRequest(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    NEUTRAL: ClassVar[Neutral] = COMPLETION

    prompt: str | list[Any]
    echo: bool = False  # the answer begins with the prompt
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None  # computed, for n of them

    @property
    def computed(self) -> int:
        """Answers to each prompt."""
        return self.n if self.best_of is None else self.best_of

    @property
    def scores_prompt(self) -> bool:
        return self.echo and self.logprobs is not None

    @property
    def shows_answer(self) -> bool:
        """Whether the answer is wanted: with `echo` and `max_tokens = 0`, only the prompt is."""
        return self.max_tokens != 0


class Completions(ServiceRoutes):
    def routes(self) -> list[Route]:
        return [
            Route(
                *("POST", "/v1/completions", self.completions, Access.INFER, ErrorFormat.OPENAI),
                tag="openai",
                summary="Continuations of prompts",
                takes=Takes(CompletionRequest, {"prompt": "Once upon a time"}, names_model=True),
                gives=Gives(Completion, ("text/event-stream",)),
                task="text-generation",
            )
        ]

    async def completions(self, request: Request, asked: CompletionRequest) -> Answer:
        served = await find_generator(self._inference, request, asked.model)
        with served.held():
            return await _answer(request, asked, served)


async def _answer(request: Request, asked: CompletionRequest, served: ServedModel) -> Answer:
    language = language_of(served)
    if asked.max_tokens is None:
        asked = msgspec.structs.replace(asked, max_tokens=_MAX_TOKENS)
    ask = ask_of({}, request)
    generation = await _generation(asked, language)
    usage = UsageCount(len(generation.prompts), sum(map(len, generation.prompts)), asked.computed)
    writer = CompletionWriter(asked, generation, served.name, language, usage, ask)
    stream = cast(ServedStream, served.stream(generation, ask))
    return await answered(stream, writer, as_events=asked.stream)


async def _generation(asked: CompletionRequest, language: Language) -> Generation:
    given = _prompts(asked.prompt)
    _check_count(asked, len(given))
    # The engine samples one token at least.
    computed = asked
    if asked.echo and not asked.shows_answer:
        computed = msgspec.structs.replace(asked, max_tokens=1)
    form = asked.form()
    if form is not None:
        await language.check_grammar(form.grammar, form.field)
    ranks = asked.computed > asked.n and asked.logprobs is None
    sampling = computed.sampling(
        language,
        logprobs=0 if ranks else asked.logprobs,
        grammar="" if form is None else form.grammar,
        scores_prompt=asked.scores_prompt,
    )
    prompts = []
    for each in given:
        if isinstance(each, str):
            try:
                ids = await language.encode(each)
            except InputTooLarge as error:
                raise too_long(error) from None
        else:
            language.check_ids(each, "prompt")
            ids = each
        if not ids:
            raise InvalidInput("prompt: has no tokens")
        check_room(language, len(ids), sampling, "prompt")
        prompts.append(tuple(ids))
    return Generation(
        tuple(prompts),
        sampling,
        asked.computed,
        shows_empty=asked.counts_always,
        # The prompt's log-probabilities come with the first token, which may be the end.
        shows_end=sampling.sampling.scores_prompt,
    )


def _check_count(asked: CompletionRequest, prompts: int) -> None:
    if prompts * asked.computed > MOST_CHOICES:
        raise InvalidInput(
            f"prompt: {prompts} prompts with {asked.computed} answers each; at most {MOST_CHOICES} "
            "answers are allowed"
        )
    if asked.computed < asked.n:
        raise InvalidInput(f"best_of: must be at least n ({asked.n})")
    if asked.computed > asked.n and asked.stream:
        raise InvalidInput("best_of: cannot be combined with stream: the best are known at the end")


def _prompts(given: str | list[Any]) -> list[str | list[int]]:
    """A text, a list of texts, one list of token ids, or several."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidInput("prompt: at least one is expected")
    if all(type(each) is int for each in given):
        return [given]
    for index, each in enumerate(given):
        if not isinstance(each, str | list):
            raise InvalidInput(f"prompt[{index}]: a text or a list of token ids is expected")
    return given


class CompletionWriter(Writer):
    def __init__(
        self,
        asked: CompletionRequest,
        generation: Generation,
        model: str,
        language: Language,
        usage: UsageCount,
        ask: Ask,
    ) -> None:
        self._head: CompletionHead = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }
        super().__init__(asked, cast(Mapping[str, Any], self._head), usage, ask)
        self._asked = asked
        self._generation = generation
        self._language = language
        self._lengths: dict[int, int] = {}  # of the text so far, by choice
        # Every event is the same up to the choice's number, and after its finish_reason.
        self._start = b"data: " + _encode(self._head)[:-1] + b',"choices":[{"index":'
        self._end = b'}],"usage":null}\n\n' if asked.includes_usage else b"}]}\n\n"

    def piece(self, piece: AnswerPiece) -> bytes:
        if self._asked.counts_always:
            self._usage.count(piece)
            self._end = b'}],"usage":' + _encode(self._usage.so_far()) + b"}\n\n"
        choice, text, _, logprobs, finish_reason, finished, *_ = piece
        if finished is not None:
            self._count(piece)
        if not self._asked.shows_answer:
            text = ""
        offset = self._lengths.get(choice)
        is_first = offset is None
        if offset is None:
            text = self._echo(choice) + text
            offset = 0
        self._lengths[choice] = offset + len(text)
        logprobs_json = b"null"
        if logprobs is not None:
            logprobs_json = _encode(self._logprobs([piece], offset, with_prompt=is_first))
        reason = b"null" if finish_reason is None else _encode(finish_reason)
        return b'%b%d,"text":%b,"logprobs":%b,"finish_reason":%b%b' % (
            *(self._start, choice, _encode(text)),
            *(logprobs_json, reason, self._end),
        )

    def answer(self, pieces: list[AnswerPiece]) -> Completion:
        for piece in pieces:
            self._count(piece)
        places = enumerate(self._best(pieces))
        choices = [self._choice(index, place, pieces) for place, index in places]
        return {**self._head, "choices": choices, "usage": self._usage.as_json()}

    def _best(self, pieces: list[AnswerPiece]) -> list[int]:
        """The answers that are shown: of each prompt the likeliest by token, best first."""
        answers = range(self._generation.count)
        computed, wanted = self._asked.computed, self._asked.n
        if computed == wanted:
            return list(answers)
        scores: dict[int, list[float]] = {index: [] for index in answers}
        for piece in pieces:
            if piece.logprobs is not None:
                scores[piece.choice].append(piece.logprobs.chosen)
        means = {index: sum(each) / max(1, len(each)) for index, each in scores.items()}
        best: list[int] = []
        for first in range(0, self._generation.count, computed):
            own = sorted(answers[first : first + computed], key=lambda index: -means[index])
            best += own[:wanted]
        return best

    def _choice(self, index: int, place: int, pieces: list[AnswerPiece]) -> CompletionChoice:
        own = [piece for piece in pieces if piece.choice == index]
        text = self._echo(index)
        if self._asked.shows_answer:
            text += "".join(piece.text for piece in own)
        logprobs = None
        if self._asked.logprobs is not None:
            is_cut = self._asked.prompt_logprobs is not None and not self._asked.scores_prompt
            shown = cut(own, self._asked.logprobs) if is_cut else own
            logprobs = self._logprobs(shown, 0, with_prompt=True)
        reason = own[-1].finish_reason
        choice: CompletionChoice = {
            "index": place,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        most = self._asked.prompt_logprobs
        if most is not None:
            prompt = self._generation.prompts[index // self._asked.computed]
            choice["prompt_logprobs"] = prompt_scores(prompt, own, self._language, most)
        return choice

    def _count(self, piece: AnswerPiece) -> None:
        self._usage.add(piece)
        if not self._asked.shows_answer:
            self._usage.completion_tokens = 0

    def _logprobs(
        self, pieces: list[AnswerPiece], offset: int, *, with_prompt: bool
    ) -> CompletionLogprobs:
        """One choice's log probabilities. `offset`: where the text of `pieces` begins in it."""
        found: CompletionLogprobs | None = None
        if with_prompt and self._asked.scores_prompt:
            prompt = self._generation.prompts[pieces[0].choice // self._asked.computed]
            scores = next(each.logprobs.prompt for each in pieces if each.logprobs is not None)
            found = prompt_logprobs(prompt, scores, self._language)
            offset = len(self._echo(pieces[0].choice))
        if not self._asked.shows_answer:
            pieces = []
        answer = completion_logprobs(pieces, self._language, offset)
        return answer if found is None else joined(found, answer)

    def _echo(self, choice: int) -> str:
        if not self._asked.echo:
            return ""
        prompt = self._generation.prompts[choice // self._asked.computed]
        found: str = self._language.text.tokenizer.decode(prompt, skip_special_tokens=True)
        return found
