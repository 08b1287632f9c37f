"""Ollama's routes, as far as they map: chats, texts, embeddings, and which models there are.

Nothing here pulls, makes or deletes models: what is served is the server's configuration.
"""

import time
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import numpy
from msgspec import Meta

from headway.errors import HeadwayError, InvalidInput
from headway.hosting.registry import ServedModel
from headway.server.auth.access import Access
from headway.server.bodies.encoding import encode_json
from headway.server.families.ollama.reading import (
    FIELDS,
    GenerateTextRequest,
    OllamaChatRequest,
    OllamaOptions,
    OllamaRequest,
    chat_of,
    messages_of,
    prompt_of,
)
from headway.server.families.ollama.writing import (
    LINES,
    GeneratedAnswer,
    LineWriter,
    OllamaChatAnswer,
    loaded,
    now_text,
)
from headway.server.families.openai.chat import begin_chat
from headway.server.families.openai.generation_request import language_of
from headway.server.families.openai.writer import answered
from headway.server.service.error_words import renamed
from headway.server.service.inference import Inference
from headway.server.service.model_tasks import check_does, embeds, generates, task_of
from headway.server.service.options import ask_of, find_or_wake
from headway.server.service.routes import Gives, Route, Takes
from headway.server.service.vectors import shortened, texts_of, tokens_in
from headway.signature.foreign import plain_of
from headway.wire.messages import Answer, Request, Response

API_VERSION = "0.12.0"  # of Ollama: clients look for what it can do
_LATEST = ":latest"  # Ollama's word for a model without a tag


class OllamaEmbedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`options` and `keep_alive` change no vector."""

    model: str
    input: str | list[Any]
    truncate: bool = True
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    options: OllamaOptions | None = None
    keep_alive: float | str | None = None


class OllamaEmbedded(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class ShowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`verbose` adds nothing: everything known is shown."""

    model: str
    verbose: bool | None = None


class ModelFamily(TypedDict):
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class Shown(TypedDict):
    modified_at: str
    details: ModelFamily
    model_info: dict[str, Any]
    capabilities: list[str]


class Tag(TypedDict):
    name: str
    model: str
    modified_at: str
    details: NotRequired[ModelFamily]


class Tags(TypedDict):
    models: list[Tag]


class ApiVersion(TypedDict):
    version: str


class Ollama:
    """The routes and their handlers, over one service."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._started = now_text()

    def routes(self) -> list[Route]:
        hello = {"messages": [{"role": "user", "content": "hello"}], "stream": False}
        text = {"prompt": "hello", "stream": False}
        return [
            Route(
                *("POST", "/api/chat", self.chat, Access.INFER),
                tag="ollama",
                summary="An answer to a chat's messages, in Ollama's format",
                takes=Takes(OllamaChatRequest, hello, names_model=True),
                gives=Gives(OllamaChatAnswer, (LINES,)),
                task="text-generation",
            ),
            Route(
                *("POST", "/api/generate", self.generate, Access.INFER),
                tag="ollama",
                summary="An answer to a prompt, in Ollama's format",
                takes=Takes(GenerateTextRequest, text, names_model=True),
                gives=Gives(GeneratedAnswer, (LINES,)),
                task="text-generation",
            ),
            Route(
                *("POST", "/api/embed", self.embed, Access.INFER),
                tag="ollama",
                summary="Texts as vectors of length 1, in Ollama's format",
                takes=Takes(OllamaEmbedRequest, {"input": ["hello"]}, names_model=True),
                gives=Gives(OllamaEmbedded),
                task="feature-extraction",
            ),
            Route(
                *("GET", "/api/tags", self.tags, Access.READ),
                tag="ollama",
                summary="The models that are served, in Ollama's format",
                gives=Gives(Tags),
            ),
            Route(
                *("POST", "/api/show", self.show, Access.READ),
                tag="ollama",
                summary="What a model can do, in Ollama's format",
                takes=Takes(ShowRequest, names_model=True),
                gives=Gives(Shown),
            ),
            Route(
                *("GET", "/api/version", self.version, Access.OPEN),
                tag="ollama",
                summary="The version of Ollama whose API this is",
                gives=Gives(ApiVersion),
            ),
        ]

    async def chat(self, request: Request, asked: OllamaChatRequest) -> Answer:
        return await self._answer(request, asked, messages_of(asked), is_chat=True)

    async def generate(self, request: Request, asked: GenerateTextRequest) -> Answer:
        return await self._answer(request, asked, prompt_of(asked), is_chat=False)

    async def _answer(
        self,
        request: Request,
        asked: OllamaRequest,
        messages: list[dict[str, Any]],
        *,
        is_chat: bool,
    ) -> Answer:
        chat = chat_of(asked, messages)
        if not messages and asked.unloads:
            raise InvalidInput("keep_alive: models are unloaded by /admin, or by unload_after_s")
        served = await self._find(request, asked.model)
        with served.held(), renamed(FIELDS):
            if not messages:
                language_of(served)
                return Response(msgspec.json.encode(loaded(asked.model, is_chat=is_chat)))
            begun = await begin_chat(request, chat, served, messages, fills_context=True)
            writer = LineWriter(chat, asked.model, begun, is_chat=is_chat)
            return await answered(begun.stream, writer, as_events=asked.stream)

    async def embed(self, request: Request, asked: OllamaEmbedRequest) -> Response:
        began_s = time.monotonic()
        served = await self._find(request, asked.model)
        check_does(served, "feature-extraction")
        parameters: dict[str, Any] = {}
        if not asked.truncate or served.takes_parameter("truncate"):
            parameters["truncate"] = asked.truncate
        ask = ask_of(parameters, request)
        texts = texts_of(asked.input, "input")
        if not all(isinstance(each, str) for each in texts):
            raise InvalidInput("input: texts are expected")
        vectors = await served.predict_many(texts, ask)
        answer: OllamaEmbedded = {
            "model": asked.model,
            "embeddings": [_unit(each, asked.dimensions) for each in vectors],
            "total_duration": round((time.monotonic() - began_s) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": tokens_in(vectors),
        }
        return Response(await encode_json(answer, plain_of), headers=ask.headers())

    async def tags(self, request: Request) -> Response:
        models = self._inference.models
        names = [*models.names(request.caller), *models.adapters(request.caller)]
        listed: list[Tag] = [
            {"name": name, "model": name, "modified_at": self._started} for name in names
        ]
        for tag in listed:
            try:
                served = models.get(request.caller, tag["name"])
            except HeadwayError:  # one that is not loaded says nothing of itself
                continue
            tag["details"] = _family(served)
        return Response(msgspec.json.encode({"models": listed}))

    async def show(self, request: Request, asked: ShowRequest) -> Response:
        served = await self._find(request, asked.model)
        family = _family(served)
        info: dict[str, Any] = {"general.architecture": family["family"]}
        if served.language is not None:
            info[f"{family['family']}.context_length"] = served.language.max_context
        capabilities = ["embedding"] if embeds(served) else []
        if served.language is not None:
            thinks = served.language.text.thinking is not None
            capabilities = ["completion", "tools", *(["thinking"] if thinks else [])]
        shown: Shown = {
            "modified_at": self._started,
            "details": family,
            "model_info": info,
            "capabilities": capabilities,
        }
        return Response(msgspec.json.encode(shown))

    async def version(self, request: Request) -> Response:
        return Response(msgspec.json.encode({"version": API_VERSION}))

    async def _find(self, request: Request, name: str) -> ServedModel:
        if name.endswith(_LATEST) and name not in self._inference.models.names(request.caller):
            name = name.removesuffix(_LATEST)
        return await find_or_wake(self._inference, request, name)


def _family(served: ServedModel) -> ModelFamily:
    """Empty where nothing is known."""
    kind = "language-model" if generates(served) else (task_of(served) or "model")
    return {
        "format": "",
        "family": kind,
        "families": [kind],
        "parameter_size": "",
        "quantization_level": "",
    }


def _unit(vector: Any, dimensions: int | None) -> Any:
    values = shortened(vector, dimensions, "dimensions")
    length = float(numpy.linalg.norm(values))
    return values / length if length else values
