"""Fast path for the commonest request: one row for a fixed-shape model, or one JSON value on
`/v1/predict`,
without a task and without a future.

Each protocol brings a codec for such requests. Every other request goes the general way
(`inference.py`), which also says what is wrong.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from headway.core.queueing.quota import Allowance
from headway.hosting.registry import ServedModel
from headway.observe.requests import server_timing
from headway.runtime.driving.calls import DirectCall
from headway.server.auth.keys import Caller
from headway.server.bodies.background import background
from headway.server.service.inference import Inference
from headway.server.service.tensors import TensorSignature
from headway.wire.messages import Asker
from headway.wire.own_cancellation import is_asked_to_stop

DirectRequest: TypeAlias = tuple[str, Any]  # its id, and its arrays or its value
Message = TypeVar("Message", contravariant=True)  # bytes of JSON, or a message of protobuf


class DirectCodec(Protocol[Message]):
    """Decodes requests and encodes answers of one protocol, for one model."""

    def decode(self, message: Message) -> DirectRequest | None:
        """Decode the request; None: it must go the general way."""

    def is_large(self, outputs: Any) -> bool:
        """Whether encoding would block an event loop for long."""

    def encode(self, request_id: str, outputs: Any) -> bytes: ...


MakeCodec: TypeAlias = Callable[[ServedModel], DirectCodec[Message] | None]


def of_rows(
    inference: Inference, make: Callable[[str, str, TensorSignature], DirectCodec[Message] | None]
) -> MakeCodec[Message]:
    """Makes codecs for models over arrays."""

    def make_codec(served: ServedModel) -> DirectCodec[Message] | None:
        if not served.is_direct:
            return None
        return make(served.name, served.version, inference.signature_of(served))

    return make_codec


class DirectPath(Generic[Message]):
    """The direct path of one protocol, for all models."""

    def __init__(self, inference: Inference, make_codec: MakeCodec[Message]) -> None:
        self._find = inference.models.registry.find_loaded
        self._make_codec = make_codec
        self._codecs: dict[tuple[str, str], tuple[ServedModel, DirectCodec[Message] | None]] = {}
        inference.models.registry.on_gone(self._forget)

    def start(
        self,
        message: Message,
        asker: Asker,
        caller: Caller | None,
        tenant: str,
        model: str,
        version: str = "",
    ) -> "DirectInference | None":
        """Start the request; None: the general way must do it. On a server with keys, the key
        determines the tenant."""
        if caller is not None and not caller.may_use(model):
            return None
        served = self._find(model, version)
        if served is None:
            return None
        known = self._codecs.get((model, version))
        if known is None or known[0] is not served:
            known = self._codecs[model, version] = served, self._make_codec(served)
        codec = known[1]
        if codec is None or (asked := codec.decode(message)) is None:
            return None
        if caller is not None:
            return _start_counted(asker, served, codec, asked, caller)
        inference = DirectInference(asker, served, codec, asked, tenant)
        return inference if served.submit_direct(inference) else None

    def _forget(self, served: ServedModel) -> None:
        for key in [key for key, known in self._codecs.items() if known[0] is served]:
            del self._codecs[key]


def _start_counted(
    asker: Asker, served: ServedModel, codec: DirectCodec[Any], asked: DirectRequest, caller: Caller
) -> "DirectInference | None":
    """Start a request that counts for a quota; None, also if that is used up: the general way
    reports it."""
    allowance, now = caller.allowance, time.monotonic()
    if not allowance.may_begin(1, now):
        return None
    inference = DirectInference(asker, served, codec, asked, caller.key.tenant, allowance)
    if not served.submit_direct(inference):
        return None
    allowance.begin(now)
    allowance.take_rows(1, now)
    return inference


class DirectInference(DirectCall):
    """One request of the direct path: submits its arrays and encodes the answer."""

    __slots__ = ("_asker", "_codec", "_encoding", "_id", "_record", "_served", "_started")

    def __init__(
        self,
        asker: Asker,
        served: ServedModel,
        codec: DirectCodec[Any],
        asked: DirectRequest,
        tenant: str = "",
        allowance: Allowance | None = None,
    ) -> None:
        """`allowance`: that of the caller's key; the request is counted there until it is over."""
        self._id, inputs = asked
        super().__init__(inputs, tenant)
        self._asker = asker
        self._served = served
        self._codec = codec
        self._record: Callable[[int, float, BaseException | None], None] = (
            served.record
            if allowance is None
            else functools.partial(_end_and_record, allowance, served)
        )
        self._started = served.clock()

    def cancel(self) -> None:
        if self.is_done:
            encoding: asyncio.Task[None] | None = getattr(self, "_encoding", None)
            if encoding is None or encoding.done():
                return
            encoding.cancel()
        else:
            self._served.withdraw(self)
        self._record(1, self._started, asyncio.CancelledError())

    def answered(self, result: Any) -> None:
        try:
            if self._codec.is_large(result):
                self._encoding = asyncio.ensure_future(self._encode_in_thread(result))
                return
            body = self._codec.encode(self._id, result)
        except BaseException as error:  # noqa: BLE001  the model's outputs; its caller is answered
            self.failed(error)
        else:
            self._record(1, self._started, None)
            self._note(self._asker.answer(body, self._timing()))

    async def _encode_in_thread(self, result: Any) -> None:
        try:
            body = await background.run(functools.partial(self._codec.encode, self._id, result))
        except BaseException as error:
            if is_asked_to_stop(error):
                raise
            self.failed(error)
        else:
            self._record(1, self._started, None)
            self._note(self._asker.answer(body, self._timing()))

    def failed(self, error: BaseException) -> None:
        self._record(1, self._started, error)
        self._note(self._asker.fail(error), getattr(error, "code", "internal"))

    def _timing(self) -> bytes:
        [(batch, ran_s)] = self.ran
        arrived_at = self._started  # but for microseconds; to look for the item would cost more
        free_at = max(batch.idle_since, arrived_at)
        return server_timing(free_at - arrived_at, batch.fired_at - free_at, ran_s)

    def _note(self, request_id: str, code: str = "") -> None:
        history = self._served.history
        if history is not None:
            history.answered(request_id or self._id, self.item_ids, self._started, code)


def _end_and_record(
    allowance: Allowance,
    served: ServedModel,
    rows: int,
    started: float,
    error: BaseException | None,
) -> None:
    allowance.end()
    served.record(rows, started, error)
