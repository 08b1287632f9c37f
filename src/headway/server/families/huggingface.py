"""Hugging Face's shapes: an unmodified `huggingface_hub.InferenceClient` works, and so do
clients of text-embeddings-inference (TEI).

Each model has a URL of its own, `/models/NAME`, to which `{"inputs": …}` or a file is posted: what
becomes of it is the model's task. The routes without a name mean the only model that does the task.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict, TypeVar

import msgspec
import numpy
from msgspec import Meta

from headway.errors import InvalidInput, NotReady
from headway.hosting.registry import Ask, ServedModel
from headway.server.auth.access import Access
from headway.server.bodies.encoding import encode_json
from headway.server.bodies.json_body import (
    beyond_floats,
    decode_fields,
    decode_json,
    fields_of,
    in_words,
    mistake_of,
)
from headway.server.families.openai.rerank import Reranking, RerankRequest
from headway.server.families.plain.handlers import Plain
from headway.server.service.inference import Inference
from headway.server.service.kinds import Task, check_does, only_one, task_of
from headway.server.service.options import ask_of, find_or_wake
from headway.server.service.routes import Gives, Route, Takes, no_query
from headway.server.service.vectors import MAX_INPUTS, check_ids, shortened, texts_of
from headway.signature.foreign import plain_of
from headway.wire.messages import Answer, Request, Response

Fields = TypeVar("Fields")
Answering: TypeAlias = Callable[[Request, ServedModel], Awaitable[Response]]


class EmbedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inputs: str | list[Any]
    truncate: bool | None = None
    truncation_direction: str | None = None
    normalize: bool | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    encoding_format: Literal["float"] | None = None


class Sentences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source_sentence: str
    sentences: list[str]


class SimilarityRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inputs: Sentences
    truncate: bool | None = None
    truncation_direction: str | None = None


class ClassifyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inputs: str | list[Any]
    truncate: bool | None = None
    truncation_direction: str | None = None
    raw_scores: Literal[False] | None = None
    top_k: Annotated[int, Meta(ge=1)] | None = None


class RankTextsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    query: str
    texts: list[str]
    truncate: bool | None = None
    truncation_direction: str | None = None
    raw_scores: Literal[False] | None = None
    return_text: bool = False


class _ImageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inputs: str  # base64
    top_k: Annotated[int, Meta(ge=1)] | None = None


class _SpeechRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inputs: str  # base64
    return_timestamps: bool | None = None


class _DrawRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inputs: Annotated[str, Meta(min_length=1)]
    width: Annotated[int, Meta(ge=1)] | None = None
    height: Annotated[int, Meta(ge=1)] | None = None
    num_inference_steps: Annotated[int, Meta(ge=1)] | None = None
    guidance_scale: Annotated[float, Meta(ge=0)] | None = None
    seed: Annotated[int, Meta(ge=0)] | None = None


class Class(TypedDict):
    label: str
    score: float


class RankedText(TypedDict):
    index: int
    score: float
    text: NotRequired[str]


class ModelInfo(TypedDict):
    model_id: str
    model_pipeline_tag: str | None
    max_client_batch_size: int
    max_batch_requests: int
    version: str


class AnyInputs(TypedDict):
    inputs: Any
    parameters: NotRequired[Any]


_SENTENCES = {"inputs": {"source_sentence": "hello", "sentences": ["hi", "goodbye"]}}
_ANYTHING = Takes(
    AnyInputs,
    {"inputs": "hello"},
    is_decoded=False,
    null_is_absence=False,
    others=("application/octet-stream",),
)
_ANSWER = Gives(Any, ("image/png",))  # whatever the model's task gives


class HuggingFace:
    """Its routes and their handlers, over one service."""

    def __init__(self, inference: Inference, plain: Plain) -> None:
        self._inference = inference
        self._plain = plain
        self._reranking = Reranking(inference)

    def routes(self) -> list[Route]:
        rows = [
            Route(
                *("POST", "/models/{model}/pipeline/{task}", self.pipeline, Access.INFER),
                tag="huggingface",
                summary="One task of a model",
                takes=_ANYTHING,
                gives=_ANSWER,
            )
        ]
        for under in ("", "/models/{model}"):
            rows += self._rows_under(under)
        # SageMaker's name for health, and vLLM's for its version.
        health = next(row for row in rows if row.template == "/health")
        rows += [health._replace(method=method, template="/ping") for method in ("GET", "POST")]
        return [
            *rows,
            Route(
                *("GET", "/version", self.version, Access.READ),
                tag="huggingface",
                summary="The server's version",
                gives=Gives(dict),
            ),
        ]

    def _rows_under(self, under: str) -> list[Route]:
        tag: Any = {"tag": "huggingface"}
        health = Route("GET", f"{under}/health", self.health, Access.OPEN, **tag)
        info = Route("GET", f"{under}/info", self.info, Access.READ, **tag)
        ask = Route("POST", under or "/", self.ask, Access.INFER, **tag)
        return [
            health._replace(summary="Whether it is ready", gives=Gives(dict)),
            info._replace(summary="What it is", gives=Gives(ModelInfo)),
            ask._replace(
                summary="`inputs`, or a file, through a model", takes=_ANYTHING, gives=_ANSWER
            ),
            *(
                Route(
                    *("POST", f"{under}/{name}", handler, Access.INFER),
                    summary=summary,
                    takes=Takes(kind, example, is_decoded=False),
                    gives=Gives(answer),
                    **tag,
                )
                for name, handler, summary, kind, example, answer in (
                    (
                        *("embed", self.embed, "Texts as vectors", EmbedRequest),
                        *({"inputs": ["hello", "world"]}, list[list[float]]),
                    ),
                    (
                        *("similarity", self.similarity, "How close sentences are to one"),
                        *(SimilarityRequest, _SENTENCES, list[float]),
                    ),
                    (
                        *("rerank", self.rerank, "Texts by how well they fit a query, best first"),
                        *(RankTextsRequest, {"query": "a city", "texts": ["Paris", "a banana"]}),
                        list[RankedText],
                    ),
                    (
                        *("predict", self.predict, "Texts as classes, likeliest first"),
                        *(ClassifyRequest, {"inputs": "hello"}, list[Class | list[Class]]),
                    ),
                )
            ),
        ]

    async def ask(self, request: Request, model: str = "") -> Response:
        """By the model's task."""
        served = await self._find(request, model, *_TASKS)
        task = task_of(served)
        if task is None or task not in _TASKS:
            raise InvalidInput(
                f"model {served.name!r} does none of Hugging Face's tasks that are served here: "
                f"{', '.join(_TASKS)}"
            )
        return await _TASKS[task](request, served)

    async def pipeline(self, request: Request, model: str, task: str) -> Response:
        served = await self._find(request, model)
        does = task_of(served)
        if task == "sentence-similarity":
            return await _similarity(request, served)
        if does is None or task != does or does not in _TASKS:
            raise InvalidInput(f"model {served.name!r} does not do {task!r}")
        return await _TASKS[does](request, served)

    async def embed(self, request: Request, model: str = "") -> Response:
        return await _embed(request, await self._find(request, model, "feature-extraction"))

    async def similarity(self, request: Request, model: str = "") -> Response:
        served = await self._find(request, model, "feature-extraction", "text-ranking")
        return await _similarity(request, served)

    async def predict(self, request: Request, model: str = "") -> Answer:
        """TEI's: one text has one list of classes, several have one each. LitServe's clients post
        here, too: if the server's only model does not classify texts, the request is answered as
        on `/v1/predict/NAME`."""
        names = self._inference.models.names(request.caller)
        if not model and len(names) == 1:
            only = await find_or_wake(self._inference, request, names[0])
            if task_of(only) != "text-classification":
                return await self._plain.predict(request, names[0])
        served = await self._find(request, model, "text-classification")
        check_does(served, "text-classification")
        asked = await _asked(request, ClassifyRequest)
        is_one = isinstance(asked.inputs, str)
        texts = [asked.inputs] if is_one else [_unpacked(each) for each in asked.inputs]
        classes, ask = await _classes(request, served, asked, texts)
        return await _answer(classes[0] if is_one else classes, ask)

    async def rerank(self, request: Request, model: str = "") -> Response:
        """TEI's: best first, each with its index. One with a `model` or `documents` is Cohere's,
        which vLLM, Jina and Infinity have here."""
        body = await _body(request)
        if not model and ("documents" in body or "model" in body):
            return await self._reranking.rerank(
                request, await decode_fields(request, RerankRequest)
            )
        served = await self._find(request, model, "text-ranking")
        check_does(served, "text-ranking")
        asked = _converted(body, RankTextsRequest)
        ask = ask_of(_truncating(asked, served), request)
        scores = await _scores(served, asked.query, asked.texts, ask, field="texts")
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        ranked: list[RankedText] = [{"index": index, "score": scores[index]} for index in order]
        if asked.return_text:
            for each in ranked:
                each["text"] = asked.texts[each["index"]]
        return await _answer(ranked, ask)

    async def info(self, request: Request, model: str = "") -> Response:
        served = await self._find(request, model, *_TASKS)
        found: ModelInfo = {
            "model_id": served.name,
            "model_pipeline_tag": task_of(served),
            "max_client_batch_size": MAX_INPUTS,
            "max_batch_requests": served.max_batch_size,
            "version": self._inference.version,
        }
        return Response(msgspec.json.encode(found))

    async def health(self, request: Request, model: str = "") -> Response:
        """As `/v2/health/ready`, or a model's own `/ready`."""
        models = self._inference.models
        if model:
            models.find_ready(request.caller, model)
        elif not models.registry.is_ready:
            raise NotReady(models.registry.unready, retry_after_s=1.0)
        return Response(b'{"status":"ok"}')

    async def version(self, request: Request) -> Response:
        """The server's version, as vLLM says its own."""
        return Response(msgspec.json.encode({"version": self._inference.version}))

    async def _find(self, request: Request, name: str, *tasks: Task) -> ServedModel:
        no_query(request)
        if name:
            return await find_or_wake(self._inference, request, name)
        return only_one(self._inference.models.answering(request.caller), tasks)


# ---- the tasks


async def _embed(request: Request, served: ServedModel) -> Response:
    body = await _body(request)
    if isinstance(body.get("inputs"), dict):  # of InferenceClient.sentence_similarity
        return await _similarity_of(request, served, _converted(body, SimilarityRequest))
    check_does(served, "feature-extraction")
    asked = _converted(body, EmbedRequest)
    if asked.normalize is False:
        raise InvalidInput(
            "normalize: false is not supported; this server gives vectors of length 1"
        )
    ask = ask_of(_truncating(asked, served), request)
    texts = texts_of(asked.inputs, "inputs")
    check_ids(texts, served, "inputs")
    vectors = await served.predict_many(texts, ask)
    answer = [shortened(vector, asked.dimensions, "dimensions") for vector in vectors]
    return await _answer(answer, ask)


async def _similarity(request: Request, served: ServedModel) -> Response:
    return await _similarity_of(request, served, await _asked(request, SimilarityRequest))


async def _similarity_of(
    request: Request, served: ServedModel, asked: SimilarityRequest
) -> Response:
    """How close each sentence is: a ranking model's score, or the cosine of two vectors."""
    ask = ask_of(_truncating(asked, served), request)
    source, sentences = asked.inputs.source_sentence, asked.inputs.sentences
    if task_of(served) == "text-ranking":
        scores = await _scores(served, source, sentences, ask, field="sentences")
        return await _answer(scores, ask)
    check_does(served, "feature-extraction")
    vectors = await served.predict_many(texts_of([source, *sentences], "inputs"), ask)
    first, *others = (_unit(vector) for vector in vectors)
    return await _answer([float(first @ other) for other in others], ask)


async def _classify_texts(request: Request, served: ServedModel) -> Response:
    """As the hub's own service answers: a list for each text, even for one."""
    asked = await _asked(request, ClassifyRequest)
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    classes, ask = await _classes(request, served, asked, texts)
    return await _answer(classes, ask)


async def _classify_image(request: Request, served: ServedModel) -> Response:
    asked, content = await _file(request, _ImageRequest)
    ask = ask_of({}, request)
    with served.held():
        found = await served.predict(content, ask)
    return await _answer(_best(found, None if asked is None else asked.top_k), ask)


async def _transcribe(request: Request, served: ServedModel) -> Response:
    asked, content = await _file(request, _SpeechRequest)
    ask = ask_of({}, request)
    with served.held():
        transcript = await served.predict(content, ask)
    answer: dict[str, Any] = {"text": str(transcript)}
    if asked is not None and asked.return_timestamps:
        answer["chunks"] = [
            {"text": each.text, "timestamp": [each.start_s, each.end_s]}
            for each in getattr(transcript, "segments", ())
            if each.text
        ]
    return await _answer(answer, ask)


async def _draw(request: Request, served: ServedModel) -> Response:
    asked = await _asked(request, _DrawRequest)
    if (asked.width is None) != (asked.height is None):
        raise InvalidInput("width: width and height must be given together")
    given = {
        "size": None if asked.width is None else f"{asked.width}x{asked.height}",
        "steps": asked.num_inference_steps,
        "guidance": asked.guidance_scale,
        "seed": asked.seed,
    }
    wishes = {name: value for name, value in given.items() if value is not None}
    ask = ask_of(wishes, request)
    image = await served.predict(asked.inputs, ask)
    return Response(bytes(image), content_type="image/png", headers=ask.headers())


_TASKS: dict[Task, Answering] = {
    "feature-extraction": _embed,
    "text-ranking": _similarity,
    "text-classification": _classify_texts,
    "image-classification": _classify_image,
    "automatic-speech-recognition": _transcribe,
    "text-to-image": _draw,
}


# ---- what they share


async def _classes(
    request: Request, served: ServedModel, asked: ClassifyRequest, texts: list[Any]
) -> tuple[list[Any], Ask]:
    ask = ask_of(_truncating(asked, served), request)
    for index, each in enumerate(texts):
        if not isinstance(each, str):
            raise InvalidInput(f"inputs[{index}]: a text is expected")
    found = await served.predict_many(texts_of(texts, "inputs"), ask)
    return [_best(each, asked.top_k) for each in found], ask


def _best(classes: Any, top_k: int | None) -> list[Class]:
    pairs = zip(classes["labels"], classes["scores"], strict=True)
    found: list[Class] = [{"label": label, "score": score} for label, score in pairs]
    return found[:top_k]


async def _scores(
    served: ServedModel, query: str, texts: list[str], ask: Ask, *, field: str
) -> list[float]:
    if not query:
        raise InvalidInput("query: the text is empty")
    pairs = [{"query": query, "document": text} for text in texts_of(list(texts), field)]
    return [float(score) for score in await served.predict_many(pairs, ask)]


def _truncating(
    asked: EmbedRequest | SimilarityRequest | ClassifyRequest | RankTextsRequest,
    served: ServedModel,
) -> dict[str, Any]:
    """For the model. One that knows nothing of it never cuts, so it need not be told not to."""
    direction = asked.truncation_direction
    if direction is not None and direction.lower() != "right":
        raise InvalidInput(
            f"truncation_direction: {direction!r} is not supported; texts are cut on the right"
        )
    if asked.truncate is None or (not asked.truncate and not served.takes_parameter("truncate")):
        return {}
    return {"truncate": asked.truncate}


def _unpacked(given: Any) -> Any:
    """TEI has each text of several in a list of its own."""
    if isinstance(given, list) and len(given) == 2:
        raise InvalidInput("inputs: pairs of texts are not supported; /rerank compares two texts")
    return given[0] if isinstance(given, list) and len(given) == 1 else given


def _unit(vector: Any) -> "numpy.ndarray[Any, Any]":
    values = numpy.asarray(vector, numpy.float32)
    return values / max(float(numpy.linalg.norm(values)), 1e-12)


async def _asked(request: Request, kind: type[Fields]) -> Fields:
    return _converted(await _body(request), kind)


async def _body(request: Request) -> dict[str, Any]:
    """All fields: those in `parameters` and those beside it."""
    try:
        body: dict[str, Any] = await decode_json(request, dict[str, Any])
    except msgspec.ValidationError as error:  # a kind of DecodeError, of what is JSON
        raise InvalidInput(beyond_floats(request.body, error) or str(error)) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        is_what = f"the body is not JSON: {in_words(error)}"
        is_what = is_what if request.body else "the body is empty: JSON is expected"
        raise InvalidInput(is_what) from error
    inner = body.pop("parameters", None)
    if inner is None:
        return body
    if not isinstance(inner, dict):
        raise InvalidInput("parameters: an object is expected")
    for name in inner.keys() & body.keys():
        raise InvalidInput(f"{name}: is given twice, in parameters and beside them")
    return body | inner


def _converted(body: dict[str, Any], kind: type[Fields]) -> Fields:
    try:
        return fields_of(body, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(mistake_of(error, kind)) from error


async def _file(request: Request, kind: type[Fields]) -> tuple[Fields | None, bytes]:
    """As the body itself, or as base64 with parameters beside it."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        if not request.body:
            raise InvalidInput("the body is empty: a file is expected")
        return None, request.body
    asked = await _asked(request, kind)
    text: str = asked.inputs  # type: ignore[attr-defined]
    try:
        return asked, base64.b64decode(text.rpartition(",")[2], validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"inputs: a file in base64 is expected: {error}") from error


async def _answer(value: Any, ask: Ask) -> Response:
    return Response(await encode_json(value, plain_of), headers=ask.headers())
