"""OpenAI's API for images: `/v1/images/generations`, as an unmodified `openai` client calls it.

Any model with one input `prompt` and one output `image`, the bytes of a PNG, can answer.
"""

import base64
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headway.server.auth.access import Access
from headway.server.bodies.background import background
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_for_task
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.wire.messages import Request, Response

MAX_IMAGES = 10  # in one request, as OpenAI has it
_AT_ONCE_BYTES = 2**16  # of images that are encoded in the event loop
_MAX_SEED = 2**63 - 1 - MAX_IMAGES


class ImagesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`seed`, `steps` and `guidance` are ours: `extra_body` of the client. Of OpenAI's own fields
    those are taken that change nothing, and others as long as they ask for nothing special."""

    model: str
    prompt: Annotated[str, Meta(min_length=1)]
    n: Annotated[int, Meta(ge=1, le=MAX_IMAGES)] | None = None
    size: str | None = None
    response_format: Literal["b64_json"] | None = None
    output_format: Literal["png"] | None = None
    stream: Literal[False] | None = None
    quality: Literal["auto", "standard"] | None = None
    background: Literal["auto", "opaque"] | None = None
    moderation: Literal["auto", "low"] | None = None
    partial_images: Literal[0] | None = None
    user: str | None = None
    seed: Annotated[int, Meta(ge=0, le=_MAX_SEED)] | None = None
    steps: Annotated[int, Meta(ge=1)] | None = None
    guidance: Annotated[float, Meta(ge=0)] | None = None


class Image(msgspec.Struct, frozen=True):
    b64_json: str


class ImagesAnswer(msgspec.Struct, frozen=True):
    created: int
    data: list[Image]
    output_format: Literal["png"] = "png"


class Images(ServiceRoutes):
    def routes(self) -> list[Route]:
        return [
            Route(
                *(
                    "POST",
                    "/v1/images/generations",
                    self.generations,
                    Access.INFER,
                    ErrorFormat.OPENAI,
                ),
                tag="openai",
                summary="Images for a prompt, as PNG in base64",
                takes=Takes(
                    ImagesRequest, {"prompt": "a red disc", "size": "auto"}, names_model=True
                ),
                gives=Gives(ImagesAnswer),
                task="text-to-image",
            )
        ]

    async def generations(self, request: Request, asked: ImagesRequest) -> Response:
        served = await find_for_task(self._inference, request, asked.model, "text-to-image")
        asks = [ask_of(_parameters(asked, number), request) for number in _numbers(asked)]
        images = await served.predict_many([asked.prompt] * len(asks), asks)
        if sum(map(len, images)) > _AT_ONCE_BYTES:
            body = await background.run(partial(_encoded, images))
        else:
            body = _encoded(images)
        return Response(body, headers=asks[0].headers())


def _encoded(images: Sequence[bytes]) -> bytes:
    data = [Image(base64.b64encode(image).decode("ascii")) for image in images]
    return msgspec.json.encode(ImagesAnswer(int(time.time()), data))


def _numbers(asked: ImagesRequest) -> range:
    return range(asked.n or 1)


def _parameters(asked: ImagesRequest, number: int) -> dict[str, Any]:
    """The parameters of image `number`: each one of a request has the next seed."""
    given = {
        "seed": None if asked.seed is None else asked.seed + number,
        "size": None if asked.size == "auto" else asked.size,
        "steps": asked.steps,
        "guidance": asked.guidance,
    }
    return {name: value for name, value in given.items() if value is not None}
