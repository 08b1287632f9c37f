"""The v2 routes: each takes a request and its path's parts and answers. Errors are raised; the
app turns them into `{"error": ...}`. It knows no sockets and no scheduler."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from headway.errors import InvalidInput, NotReady
from headway.hosting.registry import Ask, ServedModel
from headway.model import Tensor
from headway.server.auth.access import Access
from headway.server.auth.keys import check_whole_server
from headway.server.bodies.json_body import decode_fields
from headway.server.bodies.own_headers import timeout_s
from headway.server.families.v2 import codec, text_generation
from headway.server.families.v2.bodies import Live, ModelNames, ModelReady, Ready
from headway.server.families.v2.codec import WireRequest, WireResponse
from headway.server.families.v2.direct import direct_codec
from headway.server.families.v2.operations import MODEL, OPERATIONS, Asked, Operation, Operations
from headway.server.service.direct_path import DirectPath, of_rows
from headway.server.service.dtypes import of_tensor
from headway.server.service.examples import IMAGE
from headway.server.service.inference import DecodeRequest, Inference
from headway.server.service.options import ask_of, find_or_wake
from headway.server.service.requests import InferRequest
from headway.server.service.routes import ErrorFormat, Gives, Handler, Route, Takes, no_query
from headway.wire.messages import Answer, Request, Response

HEADER_LENGTH = "inference-header-content-length"

_M = MODEL


class V2:
    """The routes and their handlers, over one service. Path parts come percent-decoded."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._models = inference.models
        self._operations = Operations(inference)
        self._direct = DirectPath(inference, of_rows(inference, direct_codec))

    def routes(self) -> list[Route]:
        of_model = self._of_models(_M)
        return [
            _get("/v2/health/live", self.live, "Whether the server is alive", Live),
            _get("/v2/health/ready", self.ready, "Whether every model is ready", Ready),
            _get("/v2/models", self.models, "Names of the models", ModelNames)._replace(
                access=Access.READ
            ),
            *of_model,
            *map(_of_version, of_model),
            *self._of_operations(),
        ]

    def _of_models(self, path: str) -> list[Route]:
        """The routes of one model, for its default version; `routes` adds them for each version."""
        infer = Route(
            *("POST", f"{path}/infer", self.infer, Access.INFER, ErrorFormat.TRITON),
            direct=self._direct.start,
            may_compress=True,
            tag="v2",
            summary="Named tensors through a model, rows first",
            description="Tensors as JSON; with `Inference-Header-Content-Length`, JSON followed by "
            "binary tensors.",
            takes=Takes(
                WireRequest, example_of=example_request, is_decoded=False, null_is_absence=False
            ),
            gives=Gives(WireResponse),
        )
        generating = Route(
            *("POST", f"{path}/generate", self.generate, Access.INFER, ErrorFormat.TRITON),
            tag="v2",
            summary="Text, or any value, through a model",
            takes=Takes(
                text_generation.GenerateRequest,
                {"text_input": "hello"},
                is_decoded=False,
                null_is_absence=False,
            ),
            gives=Gives(text_generation.GenerateResponse),
        )
        ready = _get(f"{path}/ready", self.model_ready, "Whether the model is ready", ModelReady)
        return [
            infer,
            ready._replace(errors=ErrorFormat.TRITON),
            generating,
            generating._replace(
                template=f"{path}/generate_stream",
                handler=self.generate_stream,
                summary="Text, or any value, through a model, as server-sent events",
                gives=Gives(None, ("text/event-stream",)),
            ),
        ]

    def _of_operations(self) -> Iterator[Route]:
        for each in OPERATIONS:
            takes = None if each.takes is None else each.takes._replace(is_decoded=False)
            row = Route(
                *(each.method, each.template, self._face(each), each.access),
                ErrorFormat.TRITON if each.template.startswith(_M) else ErrorFormat.TEXT,
                tag="v2",
                summary=each.summary,
                description=each.description,
                takes=takes,
                gives=Gives(each.gives),
            )
            yield row
            if each.has_versions:
                yield _of_version(row)

    def _face(self, operation: Operation) -> Handler:
        takes = operation.takes

        async def answer(request: Request, **parts: str) -> Response:
            if operation.is_of_server:
                check_whole_server(request.caller)
            body = None
            if takes is not None:
                kind = operation.reads or takes.kind
                default = b"{}" if takes.is_optional else b""
                body = await decode_fields(request, kind, default=default)
            name = parts.get("model") or parts.get("region", "")
            asked = Asked(
                *(request.caller, name, parts.get("version", ""), body),
                lambda: ask_of({}, request).deadline_ms,
            )
            found = await operation.run(self._operations, asked)
            return Response() if found is None else _json(found)

        return answer

    async def infer(self, request: Request, model: str, version: str = "") -> Response:
        served = self._models.find_ready(
            request.caller, model, version
        )  # the hot path: no coroutine
        if served is None:
            served = await self._find_or_wake(request, model, version)
        no_query(request)
        body, length = request.body, _header_length(request.headers)
        signature = self._inference.signature_of(served)
        decode: DecodeRequest = partial(codec.decode, body, length, signature=signature)
        if codec.is_large(body, length, signature):
            with served.held():  # its items are queued later
                limit_s = timeout_s(request.headers)
                asked, spent_s = await self._inference.decode_in_thread(
                    decode, request.caller, limit_s
                )
                ask = ask_of(asked.parameters, request).after(spent_s)
                return await self._infer(served, asked, ask)
        asked = decode(regions=self._inference.regions_to_use(request.caller))
        return await self._infer(served, asked, ask_of(asked.parameters, request))

    async def _infer(self, served: ServedModel, asked: InferRequest, ask: Ask) -> Response:
        return _inferred(await self._inference.infer(served, asked, ask, codec.encode), ask)

    async def _find_or_wake(self, request: Request, model: str, version: str) -> ServedModel:
        head = request.body[: _header_length(request.headers) or None]
        return await find_or_wake(self._inference, request, model, version, head=head)

    async def live(self, request: Request) -> Response:
        if not self._models.registry.is_live:
            raise NotReady("no model completes any work: this process needs a restart")
        return _json(Live(live=True))

    async def ready(self, request: Request) -> Response:
        if not self._models.registry.is_ready:
            raise NotReady(self._models.registry.unready, retry_after_s=1.0)
        return _json(Ready(ready=True))

    async def models(self, request: Request) -> Response:
        return _json(ModelNames(self._models.names(request.caller)))

    async def model_ready(self, request: Request, model: str, version: str = "") -> Response:
        """Whether the model is ready. One that loads on request is loaded for this call."""
        self._models.find_ready(request.caller, model, version)
        return _json(ModelReady(model, ready=True))

    async def generate(self, request: Request, model: str, version: str = "") -> Response:
        served = await self._find_or_wake(request, model, version)
        no_query(request)
        body = await text_generation.parse(request, served)
        ask = ask_of(body.parameters, request)
        answer = await text_generation.answer(served, body, ask)
        answer.headers = ask.headers()
        return answer

    async def generate_stream(self, request: Request, model: str, version: str = "") -> Answer:
        served = await self._find_or_wake(request, model, version)
        no_query(request)
        body = await text_generation.parse(request, served, streams=True)
        return await text_generation.answer_stream(served, body, ask_of(body.parameters, request))


def _of_version(row: Route) -> Route:
    template = row.template.replace(_M, f"{_M}/versions/{{version}}")
    return row._replace(template=template, summary=f"{row.summary} (of one version)")


def _get(path: str, handler: Handler, summary: str, kind: Any) -> Route:
    return Route("GET", path, handler, Access.OPEN, tag="v2", summary=summary, gives=Gives(kind))


def example_request(model: ServedModel) -> dict[str, Any] | None:
    """A request with one row; None: JSON cannot carry it."""
    if model.only_streams or not all(of_tensor(each).is_json for each in model.inputs):
        return None
    return {"inputs": [_example_tensor(each) for each in model.inputs]}


def _example_tensor(tensor: Tensor) -> dict[str, Any]:
    datatype = of_tensor(tensor)
    shape = [1, *(1 if axis == -1 else axis for axis in tensor.shape[1:])]
    text = IMAGE if tensor.name == "image" else "hello"
    value: Any = {"bytes": text, "bool": True}.get(datatype.kind, 1)
    for axis in reversed(shape):
        value = [value] * axis
    return {"name": tensor.name, "shape": shape, "datatype": datatype.name, "data": value}


def _inferred(encoded: tuple[bytes, str, int | None], ask: Ask) -> Response:
    body, content_type, header_length = encoded
    more = ask.headers()
    if header_length is None:
        return Response(body, headers=more)
    return Response(
        body,
        content_type=content_type,
        headers=(("Inference-Header-Content-Length", str(header_length)), *more),
    )


def _header_length(headers: Mapping[str, str]) -> int | None:
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidInput(f"Inference-Header-Content-Length is {text!r}, not a whole number")
    return int(text)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value))
