"""A request's body as Python objects: the way in for every route that takes JSON."""

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy

from headway.errors import InputTooLarge, InvalidInput, nearest
from headway.server.bodies.background import background
from headway.server.bodies.neutral import Neutral, is_neutral
from headway.server.bodies.own_headers import DEADLINE, timeout_s
from headway.wire.messages import Request

Fields = TypeVar("Fields")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # of a surrogate pair, or both
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`( - at `\$\.(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")  # at the top
SMALL_BYTES = 128 * 2**10  # decoded in the event loop: that takes a few milliseconds at most
MAX_VALUES = 2**20  # of a larger one; each becomes an object
CHAT_VALUES = 2**18  # of a chat: nothing else runs while they are made; what fits has fewer
_SEPARATORS = b",[{"  # as many as there are values, and those inside texts


async def decode_json(
    request: Request, kind: Any = Any, *, default: bytes = b"", most_values: int = MAX_VALUES
) -> Any:
    """Raises what `msgspec.json.decode` does, and InputTooLarge, DeadlineExceeded.

    A large body is decoded in a thread, in its caller's time.
    """
    body = request.body or default
    if len(body) <= SMALL_BYTES:
        return msgspec.json.decode(body, type=kind)
    check_size(len(body), request.max_json_bytes)
    started = time.monotonic()
    work = partial(_decode, body, kind, most_values)
    value = await background.run(work, timeout_s=timeout_s(request.headers))
    spend(request, time.monotonic() - started)
    return value


def check_size(json_bytes: int, limit_bytes: int) -> None:
    """Raises InputTooLarge."""
    if json_bytes > limit_bytes:
        raise InputTooLarge(
            f"the JSON has {json_bytes} bytes, at most {limit_bytes} are allowed; "
            "binary tensors (v2 over HTTP or gRPC) and files may be larger",
            limit=limit_bytes,
        )


def check_values(body: "bytes | bytearray | memoryview[int]", most: int = MAX_VALUES) -> None:
    """Refuse a body with too many values before any is decoded. Raises InputTooLarge."""
    characters = numpy.frombuffer(body, numpy.uint8)
    count = sum(int(numpy.count_nonzero(characters == each)) for each in _SEPARATORS)
    if count > most:
        instead = "send binary tensors" if most == MAX_VALUES else "this route takes no more"
        raise InputTooLarge(f"the JSON has more than {most} values; {instead}", limit=most)


def _decode(body: bytes, kind: Any, most_values: int) -> Any:
    check_values(body, most_values)
    return msgspec.json.decode(body, type=kind)


async def decode_fields(request: Request, kind: type[Fields], *, default: bytes = b"") -> Fields:
    """The fields of a JSON object. Null counts as absent for every field, and 2.0 as 2.

    Raises InvalidInput, naming the field.
    """
    most: int = getattr(kind, "MOST_VALUES", MAX_VALUES)
    try:
        try:
            fields: Fields = await decode_json(request, kind, default=default, most_values=most)
        except msgspec.ValidationError:  # rarely: then it is read once more
            known = dict[str, Any]
            given = await decode_json(request, known, default=default, most_values=most)
            neutral: Neutral = getattr(kind, "NEUTRAL", {})
            for name in [name for name, each in given.items() if is_neutral(name, each, neutral)]:
                del given[name]
            fields = fields_of(given, kind)
    except msgspec.ValidationError as error:
        mistake = beyond_floats(request.body, error) or mistake_of(error, kind)
        raise InvalidInput(mistake) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(_message_of(request.body, error)) from error
    return fields


async def decode_value(request: Request, kind: Any = Any, *, hint: str = "") -> Any:
    """Decode a value as `decode_json` does. Raises InvalidInput where the body is not JSON (the
    message then ends with `hint`: what may have been meant), or is not of this kind."""
    try:
        return await decode_json(request, kind)
    except msgspec.ValidationError as error:  # a kind of DecodeError, of what is JSON
        raise InvalidInput(beyond_floats(request.body, error) or str(error)) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if not request.body:
            raise InvalidInput("the body is empty: JSON is expected") from error
        raise InvalidInput(f"the body is not JSON: {in_words(error)}{hint}") from error


def mistake_of(error: msgspec.ValidationError, kind: type) -> str:
    """Names the field first. A field in `kind`'s UNSUPPORTED (which may name an alternative) or
    NEUTRAL is reported as not supported; any other unknown one with the likely spelling."""
    missing = _MISSING.fullmatch(str(error))
    if missing is not None:
        return f"{missing[1]}: this field is missing"
    found = _UNKNOWN.fullmatch(str(error))
    if found is None:
        return str(error)
    name, place = found[1], found[3]
    if place:
        return f"{place:.60}.{name:.60}: there is no such field"
    known = {**dict.fromkeys(getattr(kind, "NEUTRAL", {}), ""), **getattr(kind, "UNSUPPORTED", {})}
    instead: str | None = known.get(name)
    if instead is not None:
        return f"{name}: this field is not supported" + (f"; {instead}" if instead else "")
    fields = [each.encode_name for each in msgspec.structs.fields(kind)]
    return f"{name:.60}: there is no such field{nearest(name[:60], fields)}"


def _message_of(body: bytes, error: Exception) -> str:
    if not body:
        return "the body is empty: JSON is expected"
    if len(body) <= SMALL_BYTES and _HALF.search(body):
        with suppress(ValueError, RecursionError):  # it is wrong in another way
            place = _half_in(json.loads(body))
            if place is not None:
                return f"{place}: holds half of a surrogate pair"
    return f"the body is not JSON: {in_words(error)}" if is_cut_off(error) else in_words(error)


def is_cut_off(error: Exception) -> bool:
    return str(error) == "Input data was truncated"


def in_words(error: Exception) -> str:
    """Says why a body is not JSON."""
    return "it is cut off" if is_cut_off(error) else str(error)


def beyond_floats(body: bytes, error: Exception) -> str:
    """A message that names the number out of range, as msgspec names no field. Empty: none is."""
    if not str(error).startswith("Number out of range") or len(body) > SMALL_BYTES:
        return ""
    with suppress(ValueError, RecursionError):
        place = _place_in(json.loads(body), lambda value: value in (math.inf, -math.inf))
        if place is not None:
            return f"{place}: the number is beyond every float"
    return ""


def _half_in(value: Any) -> str | None:
    """The place of a text that cannot be encoded, such as half a surrogate pair; Python's own JSON
    library accepts those. None: there is none."""
    return _place_in(value, lambda each: isinstance(each, str) and not _is_whole_text(each))


def _place_in(value: Any, is_wrong: Callable[[Any], bool], place: str = "") -> str | None:
    """The place of the first value or field name that `is_wrong`; None if all are right."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, list):
        parts = [(f"{place}[{index}]", each) for index, each in enumerate(value)]
    elif isinstance(value, dict):
        if any(map(is_wrong, value)):
            return place or "the body"
        parts = [(f"{place}.{name}" if place else name, each) for name, each in value.items()]
    elif is_wrong(value):
        return place or "the body"
    found = (_place_in(each, is_wrong, where) for where, each in parts)
    return next((where for where in found if where is not None), None)


def _is_whole_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def fields_of(given: Mapping[str, Any], kind: type[Fields]) -> Fields:
    """Raises msgspec.ValidationError."""
    given = {name: _whole(value) for name, value in given.items() if value is not None}
    return msgspec.convert(given, kind)


def _whole(value: Any) -> Any:
    """A float without fraction as an int: JSON has only one kind of number."""
    is_whole = type(value) is float and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value


def spend(request: Request, seconds: float) -> None:
    """Count the seconds that were spent on the request towards its deadline."""
    limit_s = timeout_s(request.headers)
    if limit_s is not None:
        left_ms = max(0.001, (limit_s - seconds) * 1e3)
        request.headers = {**request.headers, DEADLINE: str(left_ms)}
