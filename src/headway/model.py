"""The classes that users implement: `Model` for Python objects, `TensorModel` for arrays.

A model is written once and runs the same inline, in a thread and in a process of its own: `setup()`
runs wherever the model is, `load()` only where it computes.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy

In = TypeVar("In")
Out = TypeVar("Out")


class End(Enum):
    """The type of `headway.END`."""

    END = "end"

    def __repr__(self) -> str:
        return "headway.END"


JSON: Final = "application/json"
END: Final = End.END  # in a stream step: this item has ended

CANCEL: Final = "cancel"  # the argument of `predict` and `stream` that takes a token


class Cancel:
    """A token for a model that runs long: what it computes is no longer wanted once `is_set`.

    Every caller of the batch has left, the last deadline has passed, or the server stops. A model
    that wants to know takes it as a keyword: `def predict(self, items, *, cancel: headway.Cancel)`.
    What it returns or raises after that is dropped.
    """

    @property
    def is_set(self) -> bool:
        return False


class ModelHandle(Generic[In, Out]):
    """Another model of the same server, for a model that lists it in `uses`.

    Its values are queued and batched as if a client had sent them, with the deadline, the priority
    and the tenant of the request that is being answered; a call is withdrawn when nobody waits for
    that request any more. In a test, any object with these methods takes its place.
    """

    name: str

    async def __call__(
        self,
        value: In,
        *,
        deadline_ms: float | None = None,
        priority: Literal["high", "normal", "low"] | None = None,
        parameters: "Mapping[str, Any] | None" = None,
    ) -> Out:
        """Run one value, of the type that the model's own `prepare` or `predict` takes. Returns its
        result."""
        raise NotImplementedError

    async def many(self, values: Iterable[In], **options: Any) -> list[Out]:
        """Several values, results in order. The first error withdraws the others."""
        raise NotImplementedError

    def stream(self, value: In, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError

    def call(self, value: In, **options: Any) -> Out:
        """Call it from a `def predict`, which runs in a thread of its own."""
        raise NotImplementedError

    def call_many(self, values: Iterable[In], **options: Any) -> list[Out]:
        raise NotImplementedError


NO_MODELS: "Mapping[str, ModelHandle[Any, Any]]" = MappingProxyType({})


class Model(Generic[In, Out]):
    """A model over Python objects: a list of inputs in, as many outputs back, in the same order.

    Only `predict` (or `stream`) must be written. An output may be an `Exception` instance: it
    becomes that one caller's error.
    """

    rerun: ClassVar[bool] = True  # False: a failed batch must not be run again to find the culprit
    # False: `predict` and `stream` only read their items, which are then passed as they came; else
    # they get copies of them. (What has no writable parts, like a text, needs none.)
    writes_inputs: ClassVar[bool] = True
    # Keywords that a whole batch has in common: items that differ in one never share a batch.
    batch_parameters: ClassVar[Sequence[str]] = ()
    # True: `predict` pads nothing (it takes lists, or packs them itself), so a batch costs what its
    # items' sizes add up to, and lengths may be mixed.
    packed: bool = False
    # The only sizes the model runs at (it was compiled for them): items are padded up to the next,
    # by `predict`; costs are computed with them. Empty: any size.
    pad_sizes: ClassVar[Sequence[int]] = ()
    # Of answers that are bytes, on the plain route, e.g. "audio/wav"; empty: by their first
    # bytes. With it, texts are answered as they are, too: "text/html".
    media_type: ClassVar[str] = ""
    # Models of the same server that this one calls, by name: `await self.models["embed"](text)`.
    uses: ClassVar[Sequence[str]] = ()
    models: "Mapping[str, ModelHandle[Any, Any]]" = NO_MODELS  # those; set before it is loaded

    def setup(self) -> None:
        """Light preparation, in every process that has the model: tokenizer, labels."""

    def load(self) -> None:
        """Heavy preparation, only where the model computes: weights."""

    def prepare(self, raw: Any) -> Any:
        """Turn one caller's value into the item that is batched; before queueing, off the loop."""
        return raw

    def prepare_many(self, raws: list[Any]) -> Sequence[Any]:
        """`prepare` for several values at once, where that is faster (a tokenizer with threads).
        Optional, beside `prepare`; whenever it raises, they are prepared one by one."""
        return [self.prepare(raw) for raw in raws]

    def size(self, item: Any) -> int:
        """The cost of one prepared item beyond its row (tokens, samples, pixels); 0: all cost the
        same."""
        return 0

    def predict(self, items: list[In]) -> Sequence[Out]:
        raise NotImplementedError(f"{type(self).__name__} does not define predict()")

    def finish(self, result: Any) -> Any:
        """Turn one result into what the caller gets; after the batch, off the loop."""
        return result

    def stream(self, items: list[In]) -> Iterator[Sequence[Any]] | AsyncIterator[Sequence[Any]]:
        """Many answers per item: each step yields one entry per item, a chunk or None;
        `headway.END` ends that item."""
        raise NotImplementedError(f"{type(self).__name__} does not define stream()")


@dataclass(frozen=True, slots=True)
class Tensor:
    """The signature of one input or output. The first axis is the rows; −1 means it varies.

    `dtype` is numpy's name (`object`: texts, as bytes), or `bfloat16`, which is float32 in memory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    content_type: str = ""  # of texts that are more than texts: "application/json"

    @property
    def array_dtype(self) -> str:
        """The dtype of its arrays: numpy has no bfloat16."""
        return "float32" if self.dtype == "bfloat16" else self.dtype


Arrays: TypeAlias = "Mapping[str, numpy.ndarray[Any, Any]]"


class TensorModel:
    """A model over named arrays, rows first. Concatenating and splitting are ours."""

    inputs: ClassVar[Sequence[Tensor]] = ()
    outputs: ClassVar[Sequence[Tensor]] = ()
    rerun: ClassVar[bool] = True
    batch_parameters: ClassVar[Sequence[str]] = ()
    # False: `predict` only reads its arrays. Those of a lone caller are then passed without a copy,
    # read-only.
    writes_inputs: ClassVar[bool] = True
    # Inputs that may be filled up along their second axis so that lengths can share a batch, each
    # with what it is filled up with, e.g. {"input_ids": 0, "attention_mask": 0}. None: a model that
    # takes a mask is tried out before traffic, any other is not padded. {}: never.
    pads: "ClassVar[Mapping[str, float] | None]" = None
    pad_sizes: ClassVar[Sequence[int]] = ()  # the only lengths it runs at; empty: any
    # False: its arrays have no axis of rows. `inputs` and `outputs` are whole shapes then, and a
    # run takes one request's arrays as they came.
    batch_axis: bool = True
    # True: the shapes in `outputs` were guessed by the tool that wrote the model's file, and are
    # not held against its answers.
    output_shapes_are_hints: ClassVar[bool] = False
    uses: ClassVar[Sequence[str]] = ()  # as of `Model`
    models: "Mapping[str, ModelHandle[Any, Any]]" = NO_MODELS

    def setup(self) -> None:
        """Light preparation, in every process that has the model."""

    def load(self) -> None:
        """Heavy preparation, only where the model computes."""

    def check_inputs(self, inputs: Arrays) -> None:
        """Raise `headway.InvalidInput` for one caller's arrays that its batch could not take.
        Before queueing, in the event loop; names, dtypes and shapes have been checked."""

    def predict(self, batch: "dict[str, numpy.ndarray[Any, Any]]") -> Arrays:
        raise NotImplementedError(f"{type(self).__name__} does not define predict()")


class BatchesOnRequest:
    """A model that gets batches only if its user sets a batch size, as in LitServe."""

    def expect_batches(self, rows: int) -> None:
        """A flag or a file has set the batch size."""
        raise NotImplementedError


def holds_results(found: object) -> bool:
    """Whether it may hold one result for each item. A text or a mapping has a length, too, but
    is one result."""
    return hasattr(found, "__len__") and not isinstance(found, str | bytes | Mapping | Set)


def overrides(model: object, method: str) -> bool:
    """Did the user write this method, or is it still the default?"""
    own = getattr(type(model), method, None)
    return own is not None and own not in (
        getattr(Model, method, None),
        getattr(TensorModel, method, None),
    )
