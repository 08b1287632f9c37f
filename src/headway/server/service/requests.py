"""A decoded v2 request, and what it may ask of outputs: shared by JSON and protobuf, so that both
refuse the same things in the same words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Protocol, TypeAlias, TypedDict

import numpy
from msgspec import Meta, Struct

from headway.errors import InvalidInput
from headway.server.service.dtypes import BYTES, Datatype
from headway.server.service.json_data import not_json
from headway.server.service.tensors import Array, TensorSignature, objects

Scalar: TypeAlias = str | int | float | bool | None
Parameters: TypeAlias = dict[str, Scalar]
LARGE_ANSWER = 2**15  # elements in JSON or texts: encoding takes some milliseconds
_LONG_TEXTS = 2**18  # characters of texts: the same time
_LARGE_ANSWER_BYTES = 4 * 2**20  # of raw numbers: the same time
Count = Annotated[int, Meta(ge=0)]


class SharedParameters(TypedDict, total=False):
    """The place of a tensor in shared memory."""

    shared_memory_region: str | None
    shared_memory_byte_size: Count | None
    shared_memory_offset: Count | None


class InputParameters(SharedParameters, total=False):
    binary_data_size: Count | None


class OutputParameters(SharedParameters, total=False):
    binary_data: bool | None
    classification: Count | None


_SHARED = tuple(SharedParameters.__annotations__)
OF_INPUTS = tuple(InputParameters.__annotations__)
_OF_OUTPUTS = tuple(OutputParameters.__annotations__)


class SharedSlice(Struct, frozen=True):
    """The place of a tensor in a registered region."""

    region: str
    offset: int
    byte_size: int


class Regions(Protocol):
    """Registered shared memory, as far as the codec needs it. All raise InvalidInput, or Forbidden
    where the caller may not name a region."""

    def check(self, where: SharedSlice) -> None: ...

    def read(self, where: SharedSlice) -> bytes: ...

    def write(self, where: SharedSlice, data: bytes) -> None: ...


class RequestedOutput(Struct, frozen=True):
    name: str
    is_binary: bool = False
    classes: int = 0  # 0: the tensor itself
    shared: SharedSlice | None = None


class InferRequest(Struct, frozen=True):
    """A decoded inference request."""

    id: str
    inputs: dict[str, Array]
    datatypes: dict[str, Datatype]  # as sent, by input
    outputs: tuple[RequestedOutput, ...]  # empty: all of them, as `is_binary` says
    parameters: Parameters
    is_binary: bool = False
    model_name: str = ""  # where the request says it once more


def requested_outputs(
    named: Iterable[tuple[str, Parameters | None]], regions: Regions | None, *, is_binary: bool
) -> tuple[RequestedOutput, ...]:
    found: dict[str, RequestedOutput] = {}
    for name, parameters in named:
        if name in found:
            raise InvalidInput(f"output {name!r} is asked for twice")
        if not parameters:
            found[name] = RequestedOutput(name, is_binary)
            continue
        what = f"output {name!r}"
        check_known(parameters, _OF_OUTPUTS, what)
        where = shared_slice(parameters, what)
        if where is not None:
            open_regions(regions, what).check(where)
        found[name] = RequestedOutput(
            name,
            flag_of(parameters, "binary_data", what, default=is_binary),
            count_of(parameters, "classification", what) or 0,
            where,
        )
    return tuple(found.values())


def check_outputs(request: InferRequest, signature: TensorSignature) -> None:
    """Refuse before the model runs what could not be answered after."""
    known = signature.outputs
    if not known:  # a model that declares nothing: seen when it has run
        return
    for want in request.outputs:
        datatype = known.get(want.name)
        if datatype is None:
            raise _unknown_output(want.name, known)
        if not (datatype.is_json or want.is_binary or want.classes or want.shared):
            raise not_json(want.name, datatype)
    if not request.outputs and not request.is_binary:
        for name, datatype in known.items():
            if not datatype.is_json:
                raise not_json(name, datatype)


def take_output(
    want: RequestedOutput,
    outputs: Mapping[str, Array],
    signature: TensorSignature,
    labels: Mapping[str, Sequence[str]] | None,
) -> tuple[Array, Datatype]:
    """The array to send for one output, and its datatype."""
    array = outputs.get(want.name)
    if array is None:
        raise _unknown_output(want.name, outputs)
    datatype = signature.output_datatype(want.name, array)
    if want.classes:
        return classify(want, array, datatype, (labels or {}).get(want.name, ())), BYTES
    if array.ndim == 1 and signature.has_rows:  # one value a row: as the metadata says
        array = array.reshape(-1, 1)
    return array, datatype


def classify(
    want: RequestedOutput, array: Array, datatype: Datatype, labels: Sequence[str]
) -> Array:
    """The best classes of each row as BYTES: "score:index" or "score:index:label"."""
    if datatype.kind not in ("int", "float") or not array.ndim:
        raise InvalidInput(f"output {want.name!r} is {datatype.name}: it cannot be classified")
    rows = array.reshape(len(array), -1) if array.ndim > 1 else array.reshape(1, -1)
    best = numpy.argsort(-rows.astype(numpy.float64), axis=1, kind="stable")[:, : want.classes]
    found = [
        f"{score:f}:{index}{f':{labels[index]}' if index < len(labels) else ''}".encode()
        for row, order in zip(rows, best, strict=True)
        for score, index in zip(row[order].tolist(), order.tolist(), strict=True)
    ]
    return objects(found).reshape(best.shape if array.ndim > 1 else -1)


def is_large_answer(request: InferRequest, outputs: Mapping[str, Array]) -> bool:
    """Whether encoding would block an event loop for long."""
    if request.is_binary:
        return any(is_large_raw(array) for array in outputs.values())
    return any(is_large_json(array) for array in outputs.values())


def is_large_json(array: Array) -> bool:
    return array.size > LARGE_ANSWER or (array.dtype.kind in "OSU" and _has_long_texts(array))


def is_large_raw(array: Array) -> bool:
    if array.size <= LARGE_ANSWER:
        return array.dtype.kind in "OSU" and _has_long_texts(array)
    return array.dtype.hasobject or array.nbytes > _LARGE_ANSWER_BYTES


def _has_long_texts(array: Array) -> bool:
    """Whether the array contains long texts; for arrays of a few elements."""
    if not array.dtype.hasobject:
        return array.nbytes > _LONG_TEXTS
    found = array.ravel().tolist()
    return sum(len(each) for each in found if isinstance(each, str | bytes)) > _LONG_TEXTS


def check_known(parameters: Parameters, known: tuple[str, ...], what: str) -> None:
    """An unknown one is refused; one without a value says nothing."""
    for name, value in parameters.items():
        if name not in known and value is not None:
            raise InvalidInput(
                f"{what}: parameter {name!r} is unknown; there are {', '.join(known)}"
            )


def shared_slice(parameters: Parameters, what: str) -> SharedSlice | None:
    region = parameters.get("shared_memory_region")
    if region is None:
        for name in _SHARED[1:]:
            if parameters.get(name) is not None:
                raise InvalidInput(f"{what}: {name} needs a shared_memory_region")
        return None
    size = count_of(parameters, "shared_memory_byte_size", what)
    if not isinstance(region, str) or size is None:
        raise InvalidInput(f"{what}: shared_memory_region and shared_memory_byte_size go together")
    return SharedSlice(region, count_of(parameters, "shared_memory_offset", what) or 0, size)


def open_regions(regions: Regions | None, what: str) -> Regions:
    if regions is None:
        raise InvalidInput(f"{what}: shared memory is off")
    return regions


def share(want: RequestedOutput, where: SharedSlice, raw: bytes, regions: Regions | None) -> None:
    """The answer says nothing of it: Triton's C++ client takes any parameters for binary data."""
    what = f"output {want.name!r}"
    if len(raw) > where.byte_size:
        raise InvalidInput(f"{what}: {len(raw)} bytes do not fit the {where.byte_size} given")
    open_regions(regions, what).write(where, raw)


def flag_of(parameters: Parameters, key: str, what: str, *, default: bool) -> bool:
    value = parameters.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(f"{what}: parameter {key!r} must be true or false, not {value!r}")
    return value


def count_of(parameters: Parameters, key: str, what: str) -> int | None:
    value = parameters.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{what}: parameter {key!r} must be a whole number >= 0, not {value!r}")
    return value


def _unknown_output(name: str, known: Iterable[str]) -> InvalidInput:
    return InvalidInput(f"output {name!r} is unknown; the model gives {', '.join(known)}")
