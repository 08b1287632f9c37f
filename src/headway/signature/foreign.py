"""Classes of other libraries: numpy's scalars and arrays, pydantic's models, Pillow's images.

Neither pydantic nor Pillow is imported here: a model with such a hint has imported it already.
"""

import base64
import binascii
import io
import sys
from typing import Any, get_args, get_origin

import msgspec
import numpy

from headway.signature.arrays import array_of, element_schema
from headway.signature.hints import parts_of

_MOST_MISTAKES = 5  # named in one answer
IMAGE_SCHEMA = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}


def is_image(hint: Any) -> bool:
    """Whether it is Pillow's image class."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(hint, type) and issubclass(hint, pillow.Image)


def is_pydantic(hint: Any) -> bool:
    """Whether pydantic must check it: a model or dataclass of its own stands in it, or a
    constraint such as `Annotated[int, pydantic.Field(gt=0)]`."""
    if "pydantic" not in sys.modules:
        return False
    return any(
        hasattr(each, "__pydantic_core_schema__")
        or type(each).__module__.partition(".")[0] in ("pydantic", "annotated_types")
        for each in parts_of(hint)
    )


def is_known(kind: Any) -> bool:
    """Whether JSON can be turned into it by `from_json`."""
    kind = get_origin(kind) or kind
    is_numpy = isinstance(kind, type) and issubclass(kind, numpy.generic | numpy.ndarray)
    return is_numpy or kind is object or is_image(kind) or hasattr(kind, "__pydantic_validator__")


def from_json(kind: Any, value: Any) -> Any:
    """msgspec's `dec_hook`. Raises ValueError for what is not of that kind."""
    origin = get_origin(kind) or kind
    if origin is object:
        return value
    if issubclass(origin, numpy.generic):
        return origin(value)
    if issubclass(origin, numpy.ndarray):
        return _array(kind, value)
    if is_image(origin):
        return image_of(value)
    validator = getattr(origin, "__pydantic_validator__", None)
    if validator is not None:
        return _validated(validator, value)
    raise NotImplementedError


def _validated(validator: Any, value: Any) -> Any:
    try:
        return validator.validate_python(value)
    except ValueError as error:
        if not hasattr(error, "errors"):
            raise
        told = "; ".join(f"{place}: {what}" for place, what in mistakes_of(error))
        raise ValueError(told) from error


def mistakes_of(error: Any) -> list[tuple[str, str]]:
    """Of pydantic's ValidationError: places and what is wrong there."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [(".".join(map(str, each["loc"])), each["msg"]) for each in found[:_MOST_MISTAKES]]


def schema_of(kind: Any) -> dict[str, Any]:
    """msgspec's `schema_hook`."""
    origin = get_origin(kind) or kind
    if is_image(origin):
        return dict(IMAGE_SCHEMA)
    if isinstance(origin, type) and issubclass(origin, numpy.generic):
        return element_schema(numpy.dtype(origin).name)
    if isinstance(origin, type) and issubclass(origin, numpy.ndarray):
        return {"type": "array"}
    described = getattr(origin, "model_json_schema", None)
    return {} if described is None else described()


def image_of(value: Any) -> Any:
    """An image from a file's bytes, or from their base64 in JSON. Raises ValueError."""
    pillow: Any = sys.modules["PIL.Image"]
    if isinstance(value, pillow.Image):
        return value
    if isinstance(value, str):
        try:
            value = base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"an image in JSON is a file's bytes as base64: {error}") from error
    if not isinstance(value, bytes):
        raise ValueError("an image is expected: a file's bytes, in JSON as base64")
    try:
        return pillow.open(io.BytesIO(value))
    except pillow.UnidentifiedImageError as error:  # its words are an object's address
        raise ValueError("it is no image of a kind that Pillow can read") from error
    except Exception as error:  # Pillow's many: a broken one, one that is too large
        raise ValueError(f"no image that Pillow can read: {error}") from error


def _array(kind: Any, value: Any) -> Any:
    if isinstance(value, numpy.ndarray):
        return value
    dtypes = [each for each in parts_of(kind) if _is_scalar(each)]
    if dtypes:
        return array_of(value, numpy.dtype(dtypes[-1]).name)
    array = numpy.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError("an array of numbers is expected")
    return array


def _is_scalar(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, numpy.generic) and not get_args(hint)


def plain_of(value: Any) -> Any:
    """What a model gives, as JSON can carry it: msgspec's `enc_hook`. Raises
    NotImplementedError."""
    if isinstance(value, numpy.ndarray | numpy.generic):
        return value.tolist()
    if isinstance(value, str):  # of a class of its own, which says more than the text
        return str.__str__(value)
    if hasattr(value, "__pydantic_serializer__"):
        return value.__pydantic_serializer__.to_python(value, mode="json")
    if is_image(type(value)):
        return png_of(value)
    if callable(listed := getattr(value, "tolist", None)):  # a tensor of torch's, and the like
        return listed()
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def png_of(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def encode_plain(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=plain_of)
