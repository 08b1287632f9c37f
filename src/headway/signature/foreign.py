"""Classes of other libraries: numpy's scalars and arrays, pydantic's models, Pillow's images.

Neither pydantic nor Pillow is imported here: a model with such a hint has imported it already.
"""

import base64
import binascii
import io
import json
import re
import sys
from typing import Any, get_args, get_origin

import msgspec
import numpy

from headway.errors import InputTooLarge
from headway.signature.arrays import array_of, element_schema
from headway.signature.hints import parts_of

_MOST_MISTAKES = 5  # named in one answer
MAX_OBJECTS = 2**14  # objects and lists for pydantic, which reads all in one go: 1 to 5 µs each
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")  # each with a decoder made for strangers
MAX_PIXELS = 50_000_000  # a large photograph; unpacked, 150 MB
_FORMATS = ", ".join(IMAGE_FORMATS)
# A string that does not end goes to the end of the text: no search begins again within it.
_STRING_OR_OPENING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]', re.DOTALL)
IMAGE_SCHEMA = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}


def is_image(hint: Any) -> bool:
    """Whether it is Pillow's image class."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(hint, type) and issubclass(hint, pillow.Image)


def is_pydantic(hint: Any) -> bool:
    """Whether pydantic must check it: it contains a pydantic model or dataclass, or a
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
        mistakes = "; ".join(f"{place}: {what}" for place, what in mistakes_of(error))
        raise ValueError(mistakes) from error


def mistakes_of(error: Any) -> list[tuple[str, str]]:
    """The places in pydantic's ValidationError, each with what is wrong there."""
    return [
        (".".join(map(str, each["loc"])), each["msg"]) for each in first_of(error, _MOST_MISTAKES)
    ]


def first_of(error: Any, count: int) -> list[dict[str, Any]]:
    """The first of a ValidationError's `errors()`. There may be as many as values were sent: as
    Python objects, all of them would take seconds."""
    text = error.json(include_url=False, include_context=False, include_input=False)
    found: list[dict[str, Any]] = []
    decode, at = json.JSONDecoder().raw_decode, 1
    for _ in range(min(count, error.error_count())):
        each, end = decode(text, at)
        found.append(each)
        at = end + 1  # a comma
    return found


def check_objects(text: bytes) -> None:
    """Refuse a text with too many objects, before pydantic reads it. Raises InputTooLarge."""
    if text.count(b"{") + text.count(b"[") <= MAX_OBJECTS:
        return
    count = 0
    for found in _STRING_OR_OPENING.finditer(text):
        count += found.group() in (b"{", b"[")
        if count > MAX_OBJECTS:
            raise InputTooLarge(
                f"the value has more than {MAX_OBJECTS} objects and lists. Several values go in "
                "one request as the items of /batch",
                limit=MAX_OBJECTS,
            )


def failing_fast(adapter: Any) -> Any:
    """The same as a `TypeAdapter`, for values of many parts: of a list only the first mistake is
    looked for. With a pydantic that has no such setting it is the adapter itself."""
    validator: Any = sys.modules["pydantic_core"].SchemaValidator
    try:
        schema = _failing_fast(adapter.core_schema)
        try:
            return validator(schema, _use_prebuilt=False)
        except TypeError:  # older ones have nothing that is built before
            return validator(schema)
    except Exception:  # noqa: BLE001  the schema is pydantic's own, and so are its errors
        return adapter


def _failing_fast(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(map(_failing_fast, schema))
    if not isinstance(schema, dict):
        return schema
    made = {
        key: value if key == "default" else _failing_fast(value) for key, value in schema.items()
    }
    if schema.get("type") in ("list", "tuple", "set", "frozenset"):
        made["fail_fast"] = True
    return made


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
        image = pillow.open(io.BytesIO(value), formats=IMAGE_FORMATS)
    except pillow.UnidentifiedImageError as error:  # its words are an object's address
        raise ValueError(f"it is not an image in a known format: {_FORMATS}") from error
    except Exception as error:  # Pillow's many: a broken one, one that is too large
        raise ValueError(f"no image that Pillow can read: {error}") from error
    pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        raise InputTooLarge(f"an image of {pixels} pixels; at most {MAX_PIXELS}", limit=MAX_PIXELS)
    return image


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
    """A model's result in types that JSON can carry: msgspec's `enc_hook`. Raises
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
