"""The one service behind the v2 protocol, over HTTP and gRPC: find or wake a model, decode, submit,
encode.

The handlers of both translate a request into this service's terms and call it. The commonest
request takes a shorter way: see `direct.py`. Routes over values (`/v1/predict`, OpenAI's) find
models here, and call them on their own.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from headway.config import ServerConfig
from headway.errors import Forbidden, InvalidInput, NotReady
from headway.hosting.registry import Array, Ask, Registry, ServedModel
from headway.observe.requests import current
from headway.server.auth.keys import Caller, check_regions
from headway.server.bodies.background import background
from headway.server.service.models import VisibleModels
from headway.server.service.requests import InferRequest, Regions, check_outputs, is_large_answer
from headway.server.service.shared_memory import RefusedRegions, SharedRegions
from headway.server.service.tensors import NORMAL, RequestLimits, TensorSignature

Encoded = TypeVar("Encoded", covariant=True)


class DecodeRequest(Protocol):
    """Decodes one request's bytes to arrays, by the codec of JSON or of protobuf."""

    def __call__(self, *, regions: Regions | None) -> InferRequest: ...


class EncodeAnswer(Protocol[Encoded]):
    """Encodes an answer in one protocol."""

    def __call__(
        self,
        model_name: str,
        version: str,
        request: InferRequest,
        outputs: Mapping[str, Array],
        *,
        signature: TensorSignature,
        labels: Mapping[str, Sequence[str]] | None,
        regions: SharedRegions | None,
    ) -> Encoded: ...


class Inference:
    """Runs requests on the models of one server."""

    def __init__(
        self,
        registry: Registry,
        *,
        name: str = "headway",
        version: str = "0",
        regions: SharedRegions | None = None,
        limits: RequestLimits = NORMAL,
    ) -> None:
        self.models = VisibleModels(registry)
        self.name = name  # of this server
        self.version = version  # of this server
        self.regions = regions  # None: shared memory is off
        self.limits = limits
        # Weakly: a request that found its model before it was unloaded may ask after that.
        self._signatures = WeakKeyDictionary[ServedModel, TensorSignature]()

    # ---- finding

    async def wake(
        self, caller: Caller | None, name: str, version: str, deadline_ms: float | None
    ) -> tuple[ServedModel, float | None]:
        """Wait until a model that loads on request is ready. Returns it and the rest of the
        caller's time."""
        started = time.monotonic()
        timeout_s = None if deadline_ms is None else deadline_ms / 1e3
        try:
            served = await self.models.wait_ready(caller, name, version, timeout_s=timeout_s)
        finally:
            note = current()
            if note is not None:
                note.loaded_s += time.monotonic() - started
        if deadline_ms is None:
            return served, None
        return served, max(0.001, deadline_ms - (time.monotonic() - started) * 1e3)

    async def known(
        self,
        caller: Caller | None,
        name: str,
        version: str,
        deadline_ms: Callable[[], float | None],
    ) -> ServedModel:
        """The model, to be described. Clients ask for the description first, so a model that loads
        on request is loaded."""
        try:
            return self.models.get(caller, name, version)
        except NotReady:
            return (await self.wake(caller, name, version, deadline_ms()))[0]

    def signature_of(self, served: ServedModel) -> TensorSignature:
        """The model's signature, computed once for each model and forgotten with it."""
        signature = self._signatures.get(served)
        if signature is None:
            signature = TensorSignature(
                served.inputs, served.outputs, self.limits, has_rows=served.max_batch_size > 0
            )
            self._signatures[served] = signature
        return signature

    def regions_to_use(self, caller: Caller | None) -> Regions | None:
        """The shared memory regions that a request's tensors may use. None: shared memory is
        off."""
        if self.regions is None:
            return None
        try:
            check_regions(caller)
        except Forbidden as error:
            return RefusedRegions(error)
        return self.regions

    # ---- arrays in, arrays out

    async def decode_in_thread(
        self, decode: DecodeRequest, caller: Caller | None, timeout_s: float | None
    ) -> tuple[InferRequest, float]:
        """A large request, and how many seconds of its caller's time that took. The caller of this
        holds the model meanwhile."""
        started = time.monotonic()
        regions = self.regions_to_use(caller)
        asked = await background.run(partial(decode, regions=regions), timeout_s=timeout_s)
        return asked, time.monotonic() - started

    async def infer(
        self, served: ServedModel, asked: InferRequest, ask: Ask, encode: EncodeAnswer[Encoded]
    ) -> Encoded:
        if asked.model_name and asked.model_name != served.name:
            raise InvalidInput(
                f"model_name is {asked.model_name!r}, but the request was sent to {served.name!r}"
            )
        signature = self.signature_of(served)
        inputs = signature.check_inputs(asked.inputs, asked.datatypes)
        check_outputs(asked, signature)
        outputs = await served.infer(inputs, ask)
        if is_large_answer(asked, outputs):
            return await background.run(partial(self.encode, served, asked, outputs, encode))
        return self.encode(served, asked, outputs, encode)

    def checked(self, served: ServedModel, asked: InferRequest) -> Mapping[str, Array]:
        """The inputs of a stream, as the model takes them. Raises InvalidInput, InputTooLarge."""
        signature = self.signature_of(served)
        check_outputs(asked, signature)
        return signature.check_inputs(asked.inputs, asked.datatypes)

    def encode(
        self,
        served: ServedModel,
        asked: InferRequest,
        outputs: Mapping[str, Array],
        encode: EncodeAnswer[Encoded],
    ) -> Encoded:
        return encode(
            served.name,
            served.version,
            asked,
            outputs,
            signature=self.signature_of(served),
            labels=served.labels,
            regions=self.regions,
        )


class ServiceRoutes:
    """The routes of a family and their handlers, over one service."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference


def inference_over(
    models: Registry | Inference,
    config: ServerConfig,
    *,
    version: str = "0",
    regions: SharedRegions | None = None,
) -> Inference:
    """The given inference, or a new one over these models."""
    if isinstance(models, Inference):
        return models
    limits = RequestLimits(
        config.max_request_rows, config.max_tensor_elements, config.max_json_bytes
    )
    return Inference(
        models, name=config.server_name, version=version, regions=regions, limits=limits
    )
