"""OpenAI's API, as far as embeddings go: an unmodified `openai` client works."""

import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headway.errors import HeadwayError
from headway.server.api.kinds import check_does, task_of
from headway.server.api.v2.asking import ask_of, find_or_wake, no_query
from headway.server.api.vectors import (
    base64_of,
    check_ids,
    shortened,
    texts_of,
    token_ids_of,
    tokens_in,
)
from headway.server.inference import Inference
from headway.server.json.body import decode_fields
from headway.server.json.encoding import encode_json
from headway.server.net.messages import Request, Response
from headway.server.net.plain_json import plain_of

ROUTES: list[tuple[Literal["GET", "POST"], str, str]] = [
    ("GET", "/v1/models", "models"),
    ("GET", "/v1/models/{model}", "model"),
    ("POST", "/v1/embeddings", "embeddings"),
]


class EmbeddingsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`user` names the end user; it changes nothing."""

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
        data = [self._entry(request, name) for name in models.names(request.caller)]
        adapters = models.adapters(request.caller)
        data += [self._entry(request, name, parent) for name, parent in adapters.items()]
        return Response(msgspec.json.encode({"object": "list", "data": data}))

    async def model(self, request: Request, model: str) -> Response:
        self._inference.models.find_ready(request.caller, model)
        parent = self._inference.models.adapters(request.caller).get(model, "")
        kserve = {"name": model, "ready": True}  # its first protocol has the same path
        return Response(msgspec.json.encode({**self._entry(request, model, parent), **kserve}))

    async def embeddings(self, request: Request) -> Response:
        no_query(request)
        asked = await decode_fields(request, EmbeddingsRequest)
        served = await find_or_wake(self._inference, request, asked.model)
        check_does(served, "feature-extraction")
        wishes = {} if asked.truncate is None else {"truncate": asked.truncate}
        ask = ask_of(wishes, request)
        texts = texts_of(asked.input, "input")
        check_ids(texts, served, "input")
        vectors = await served.predict_many(texts, ask)
        tokens = tokens_in(vectors)
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, asked)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "model": served.name, "data": data, "usage": usage}
        more = () if ask.story is None else ask.story.headers()
        return Response(await encode_json(answer, plain_of), headers=more)

    def _more(self, request: Request, name: str) -> dict[str, object]:
        try:
            served = self._inference.models.get(request.caller, name)
        except HeadwayError:  # one that is not loaded says nothing of itself
            return {}
        told = {"task": task_of(served), "token_ids": token_ids_of(served)}
        return {key: value for key, value in told.items() if value is not None}

    def _entry(self, request: Request, name: str, parent: str = "") -> dict[str, object]:
        """OpenAI's, and what a client has to know beside it."""
        return {
            **self._more(request, name),
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "headway",
            **({"parent": parent} if parent else {}),
        }


def _encoded(vector: Any, asked: EmbeddingsRequest) -> object:
    values = shortened(vector, asked.dimensions, "dimensions")
    return base64_of(values) if asked.encoding_format == "base64" else values
