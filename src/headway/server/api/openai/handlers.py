"""OpenAI's API, as far as embeddings go: an unmodified `openai` client works."""

import base64
import time
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy
from msgspec import Meta

from headway.errors import InvalidInput
from headway.hosting.registry import ServedModel
from headway.server.api.v2.asking import ask_of, find_or_wake, no_query
from headway.server.inference import Inference
from headway.server.json.body import decode_json
from headway.server.json.encoding import encode_json
from headway.server.net.messages import Request, Response
from headway.server.net.plain_json import plain_of

ROUTES: list[tuple[Literal["GET", "POST"], str, str]] = [
    ("GET", "/v1/models", "models"),
    ("GET", "/v1/models/{model}", "model"),
    ("POST", "/v1/embeddings", "embeddings"),
]
Asked = TypeVar("Asked")
MAX_INPUTS = 2048  # in one request, as OpenAI has it


class EmbeddingsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`user` is whom the answer is for; it changes nothing."""

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    truncate: bool | None = None  # not OpenAI's: cut a text that is too long, or refuse it
    user: str | None = None


class OpenAI:
    """The handlers that ROUTES names, over one service."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        models = self._inference.models
        data = [self._entry(name) for name in models.names(request.caller)]
        adapters = models.adapters(request.caller)
        data += [self._entry(name, parent) for name, parent in adapters.items()]
        return Response(msgspec.json.encode({"object": "list", "data": data}))

    async def model(self, request: Request, model: str) -> Response:
        self._inference.models.find_ready(request.caller, model)
        parent = self._inference.models.adapters(request.caller).get(model, "")
        return Response(msgspec.json.encode(self._entry(model, parent)))

    async def embeddings(self, request: Request) -> Response:
        no_query(request)
        asked = await decoded(request, EmbeddingsRequest)
        served = await find_or_wake(self._inference, request, asked.model)
        _check_embeds(served)
        wishes = {} if asked.truncate is None else {"truncate": asked.truncate}
        ask = ask_of(wishes, request)
        texts = _inputs(asked.input)
        vectors = await served.predict_many(texts, ask)
        tokens = sum(getattr(vector, "tokens", 0) for vector in vectors)
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, asked)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "model": served.name, "data": data, "usage": usage}
        more = () if ask.story is None else ask.story.headers()
        return Response(await encode_json(answer, plain_of), headers=more)

    def _entry(self, name: str, parent: str = "") -> dict[str, object]:
        entry = {"id": name, "object": "model", "created": self._created, "owned_by": "headway"}
        return {**entry, "parent": parent} if parent else entry


async def decoded(request: Request, kind: type[Asked]) -> Asked:
    """What the body asks for. Raises InvalidInput, naming the field."""
    try:
        asked: Asked = await decode_json(request, kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        is_what = str(error) if request.body else "the body is empty: JSON is expected"
        raise InvalidInput(is_what) from error
    return asked


def _inputs(given: str | list[Any]) -> list[str | list[int]]:
    """A text, a list of texts, one list of token ids, or several: as OpenAI takes them."""
    if isinstance(given, str):
        return [given]
    if given and all(type(each) is int for each in given):
        return [given]
    if not given:
        raise InvalidInput("input: at least one text is expected")
    if len(given) > MAX_INPUTS:
        raise InvalidInput(f"input: {len(given)} texts; at most {MAX_INPUTS} are allowed")
    for index, each in enumerate(given):
        is_ids = isinstance(each, list) and all(type(token) is int for token in each)
        if not isinstance(each, str) and not is_ids:
            raise InvalidInput(f"input[{index}]: a text or a list of token ids is expected")
    return given


def _check_embeds(served: ServedModel) -> None:
    outputs = served.outputs
    takes_texts = [each.dtype for each in served.inputs] == ["object"]
    gives_vectors = [each.dtype for each in outputs] == ["float32"] and len(outputs[0].shape) == 2
    if not (takes_texts and gives_vectors):
        raise InvalidInput(f"model {served.name!r} does not make embeddings")


def _encoded(vector: Any, asked: EmbeddingsRequest) -> object:
    values = numpy.asarray(vector, dtype="<f4")
    if asked.dimensions is not None:
        values = _shortened(values, asked.dimensions)
    if asked.encoding_format == "base64":
        return base64.b64encode(values.tobytes()).decode("ascii")
    return values


def _shortened(values: "numpy.ndarray[Any, Any]", dimensions: int) -> "numpy.ndarray[Any, Any]":
    if dimensions > len(values):
        raise InvalidInput(f"dimensions: {dimensions}; the model has {len(values)}")
    cut = values[:dimensions]
    length = float(numpy.linalg.norm(cut))
    return cut / length if length else cut
