"""KServe's first protocol, TensorFlow Serving's before it: `POST /v1/models/NAME:predict` with
`{"instances": […]}` is answered by `{"predictions": […]}`, one for each, in order."""

from typing import Any, TypedDict

import msgspec

from headway.errors import InvalidInput
from headway.server.auth.access import Access
from headway.server.bodies.json_body import decode_fields
from headway.server.families.plain.answers import encoded
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_or_wake
from headway.server.service.routes import Gives, Route, Takes, no_query
from headway.server.service.tensors import too_many_rows
from headway.signature.foreign import plain_of
from headway.wire.messages import Request, Response


class InstancesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instances: list[Any]
    parameters: dict[str, Any] | None = None  # for the model; not KServe's


class Predictions(TypedDict):
    predictions: list[Any]


class Instances(ServiceRoutes):
    """An instance is what the plain route takes
    as one value; the first that fails is the whole request's error."""

    def routes(self) -> list[Route]:
        return [
            Route(
                *("POST", "/v1/models/{model}:predict", self.predict, Access.INFER),
                tag="v1",
                summary="Values through a model, in order",
                takes=Takes(InstancesRequest, {"instances": ["hello"]}, is_decoded=False),
                gives=Gives(Predictions),
            )
        ]

    async def predict(self, request: Request, model: str) -> Response:
        no_query(request)
        served = await find_or_wake(self._inference, request, model)
        most = self._inference.limits.rows
        with served.held():
            asked = await decode_fields(request, InstancesRequest)
            if not asked.instances:
                raise InvalidInput("instances: at least one is expected")
            if len(asked.instances) > most:
                raise too_many_rows(len(asked.instances), most)
            ask = ask_of(asked.parameters or {}, request)
            results = await served.predict_many(asked.instances, ask)
        answer: Predictions = {"predictions": results}
        return Response(await encoded(answer, plain_of), headers=ask.headers())
