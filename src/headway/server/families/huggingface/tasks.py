"""Hugging Face's tasks: what their clients send and get, and the model's answer to it."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict, TypeVar

import msgspec
import numpy
from msgspec import Meta

from headway.errors import InvalidInput
from headway.hosting.registry import Ask, ServedModel
from headway.server.bodies.encoding import encode_json
from headway.server.bodies.json_body import decode_value, fields_of, mistake_of
from headway.server.service.model_tasks import Task, check_does, task_of
from headway.server.service.options import ask_of
from headway.server.service.vectors import Array, check_ids, first_numbers, texts_of
from headway.signature.foreign import plain_of
from headway.wire.messages import Request, Response

_ROUNDING = 1e-6  # by which the length of a vector that is 1 may be off in float32

Fields = TypeVar("Fields")
Answering: TypeAlias = Callable[[Request, ServedModel], Awaitable[Response]]


class EmbedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inputs: str | list[Any]
    truncate: bool | None = None
    truncation_direction: str | None = None
    normalize: bool | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    prompt_name: str | None = None
    encoding_format: Literal["float"] | None = None


class SimilarityInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source_sentence: str
    sentences: list[str]


class SimilarityRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inputs: SimilarityInputs
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


# ---- the tasks


async def embed(request: Request, served: ServedModel) -> Response:
    body = await fields_in(request)
    if isinstance(body.get("inputs"), dict):  # of InferenceClient.sentence_similarity
        return await _similarity_of(request, served, converted(body, SimilarityRequest))
    check_does(served, "feature-extraction")
    asked = converted(body, EmbedRequest)
    finish = _finisher(asked, served)
    parameters = truncating(asked, served)
    if asked.prompt_name is not None:
        parameters["prompt_name"] = asked.prompt_name
    ask = ask_of(parameters, request)
    texts = texts_of(asked.inputs, "inputs")
    check_ids(texts, served, "inputs")
    vectors = await served.predict_many(texts, ask)
    return await answered([finish(vector) for vector in vectors], ask)


def _finisher(asked: EmbedRequest, served: ServedModel) -> Callable[[Any], Array]:
    """Cuts a vector to the dimensions asked for and scales it to length 1, as TEI does; with
    `normalize` false it is only cut."""
    if asked.normalize is not False:
        return lambda vector: _unit(first_numbers(vector, asked.dimensions, "dimensions"))
    if getattr(getattr(served, "model", None), "normalizes", False):
        raise InvalidInput(
            f"normalize: false is not supported by model {served.name!r}, which itself scales its "
            "vectors to length 1"
        )
    return lambda vector: first_numbers(vector, asked.dimensions, "dimensions")


async def similarity(request: Request, served: ServedModel) -> Response:
    return await _similarity_of(request, served, await decoded(request, SimilarityRequest))


async def _similarity_of(
    request: Request, served: ServedModel, asked: SimilarityRequest
) -> Response:
    """The similarity of each sentence: a ranking model's score, or the cosine of two vectors."""
    ask = ask_of(truncating(asked, served), request)
    source, sentences = asked.inputs.source_sentence, asked.inputs.sentences
    if task_of(served) == "text-ranking":
        scores = await scores_of(served, source, sentences, ask, field="sentences")
        return await answered(scores, ask)
    check_does(served, "feature-extraction")
    vectors = await served.predict_many(texts_of([source, *sentences], "inputs"), ask)
    first, *others = (_unit(vector) for vector in vectors)
    return await answered([float(first @ other) for other in others], ask)


async def _classify_texts(request: Request, served: ServedModel) -> Response:
    """Classify texts. The answer has a list for each text, even for one, as the hub's own service
    does."""
    asked = await decoded(request, ClassifyRequest)
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    classes, ask = await classes_of(request, served, asked, texts)
    return await answered(classes, ask)


async def _classify_image(request: Request, served: ServedModel) -> Response:
    asked, content = await _file(request, _ImageRequest)
    ask = ask_of({}, request)
    with served.held():
        found = await served.predict(content, ask)
    return await answered(_best(found, None if asked is None else asked.top_k), ask)


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
    return await answered(answer, ask)


async def _draw(request: Request, served: ServedModel) -> Response:
    asked = await decoded(request, _DrawRequest)
    if (asked.width is None) != (asked.height is None):
        raise InvalidInput("width: width and height must be given together")
    given = {
        "size": None if asked.width is None else f"{asked.width}x{asked.height}",
        "steps": asked.num_inference_steps,
        "guidance": asked.guidance_scale,
        "seed": asked.seed,
    }
    parameters = {name: value for name, value in given.items() if value is not None}
    ask = ask_of(parameters, request)
    image = await served.predict(asked.inputs, ask)
    return Response(bytes(image), content_type="image/png", headers=ask.headers())


TASKS: dict[Task, Answering] = {
    "feature-extraction": embed,
    "text-ranking": similarity,
    "text-classification": _classify_texts,
    "image-classification": _classify_image,
    "automatic-speech-recognition": _transcribe,
    "text-to-image": _draw,
}


# ---- what they share


async def classes_of(
    request: Request, served: ServedModel, asked: ClassifyRequest, texts: list[Any]
) -> tuple[list[Any], Ask]:
    ask = ask_of(truncating(asked, served), request)
    for index, each in enumerate(texts):
        if not isinstance(each, str):
            raise InvalidInput(f"inputs[{index}]: a text is expected")
    found = await served.predict_many(texts_of(texts, "inputs"), ask)
    return [_best(each, asked.top_k) for each in found], ask


def _best(classes: Any, top_k: int | None) -> list[Class]:
    pairs = zip(classes["labels"], classes["scores"], strict=True)
    found: list[Class] = [{"label": label, "score": score} for label, score in pairs]
    return found[:top_k]


async def scores_of(
    served: ServedModel, query: str, texts: list[str], ask: Ask, *, field: str
) -> list[float]:
    if not query:
        raise InvalidInput("query: the text is empty")
    pairs = [{"query": query, "document": text} for text in texts_of(list(texts), field)]
    return [float(score) for score in await served.predict_many(pairs, ask)]


def truncating(
    asked: EmbedRequest | SimilarityRequest | ClassifyRequest | RankTextsRequest,
    served: ServedModel,
) -> dict[str, Any]:
    """The model's parameter. A model without it never cuts texts."""
    direction = asked.truncation_direction
    if direction is not None and direction.lower() != "right":
        raise InvalidInput(
            f"truncation_direction: {direction!r} is not supported; texts are cut on the right"
        )
    if asked.truncate is None or (not asked.truncate and not served.takes_parameter("truncate")):
        return {}
    return {"truncate": asked.truncate}


def unpacked(given: Any) -> Any:
    """The texts, each taken out of its list: that is how TEI's clients send several."""
    if isinstance(given, list) and len(given) == 2:
        raise InvalidInput("inputs: pairs of texts are not supported; /rerank compares two texts")
    return given[0] if isinstance(given, list) and len(given) == 1 else given


def _unit(vector: Any) -> Array:
    """The vector at length 1. A vector of that length is not divided: it would lose digits."""
    values = numpy.asarray(vector, numpy.float32)
    length = float(numpy.linalg.norm(values))
    return values if abs(length - 1) < _ROUNDING else values / max(length, 1e-12)


async def decoded(request: Request, kind: type[Fields]) -> Fields:
    return converted(await fields_in(request), kind)


async def fields_in(request: Request) -> dict[str, Any]:
    """The body's fields: those in `parameters` and those beside it."""
    body: dict[str, Any] = await decode_value(request, dict[str, Any])
    inner = body.pop("parameters", None)
    if inner is None:
        return body
    if not isinstance(inner, dict):
        raise InvalidInput("parameters: an object is expected")
    for name in inner.keys() & body.keys():
        raise InvalidInput(f"{name}: is given twice, in parameters and beside them")
    return body | inner


def converted(body: dict[str, Any], kind: type[Fields]) -> Fields:
    try:
        return fields_of(body, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(mistake_of(error, kind)) from error


async def _file(request: Request, kind: type[Fields]) -> tuple[Fields | None, bytes]:
    """The file, which is the body itself or base64 in JSON, and the parameters in that JSON."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        if not request.body:
            raise InvalidInput("the body is empty: a file is expected")
        return None, request.body
    asked = await decoded(request, kind)
    text: str = asked.inputs  # type: ignore[attr-defined]
    try:
        return asked, base64.b64decode(text.rpartition(",")[2], validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"inputs: a file in base64 is expected: {error}") from error


async def answered(value: Any, ask: Ask) -> Response:
    return Response(await encode_json(value, plain_of), headers=ask.headers())
