"""Bodies that are no JSON: a file or a text as it is, or a form of several, as one value.

A model's input hint decides: `bytes`, an image of Pillow's and `str` take a body as it is, or a
form's only part; a dataclass, TypedDict, pydantic model or dict takes a form by its fields' names.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from headway.errors import InvalidInput
from headway.hosting.registry import ServedModel
from headway.server.bodies.background import background
from headway.server.bodies.multipart_form import read_form
from headway.server.bodies.own_headers import timeout_s
from headway.signature import Decoded, Side
from headway.signature.hints import admits, known, plain, spelled
from headway.signature.values import field_hints, is_file
from headway.wire.messages import Request

_FORM = "multipart/form-data"
_TEXT = "text/"
_FILES = ("image/", "audio/", "video/", "font/", "application/octet-stream", "application/pdf")


def is_upload(request: Request, served: ServedModel) -> bool:
    """Whether the body is one; if not, it is JSON. A body of type `text/plain` is a text where the
    model takes one: browsers send JSON under that name, too."""
    kind = _kind(request)
    if not kind or kind == "application/json":
        return False
    side = _input_side(served)
    if side is None:
        return False
    if kind.startswith(_TEXT):
        return known(side.hint) is None or admits(side.hint, str) or is_file(side.hint)
    return kind == _FORM or kind.startswith(_FILES)


async def read_upload(request: Request, served: ServedModel) -> Decoded:
    """Read an upload off the event loop, because files are large. Raises InvalidInput,
    InputTooLarge."""
    side, kind = _input_side(served), _kind(request)
    assert side is not None
    content_type = request.headers.get("content-type", "")

    def read() -> Any:
        if kind == _FORM:
            return _of_form(read_form(content_type, request.body), side, served.name)
        return _of_body(request.body, kind, side, served.name)

    limit_s = timeout_s(request.headers)
    return Decoded(await background.run(read, timeout_s=limit_s))


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _input_side(served: ServedModel) -> Side | None:
    signature = served.signature
    return None if signature is None else signature.input


def _of_body(body: bytes, kind: str, side: Side, name: str) -> Any:
    hint = side.hint
    if known(hint) is None:
        return _text(body) if kind.startswith(_TEXT) else body
    if is_file(hint):
        return side.codec.decode_form(body)
    if admits(hint, str):
        return side.codec.decode_form(_text(body))
    files = [field for field, each in field_hints(hint).items() if is_file(each)]
    if len(files) == 1:
        return side.codec.decode_form({files[0]: body})
    raise InvalidInput(
        f"model {name!r} takes {_spelled(hint)}, not a body of {kind}: send JSON, or a form with "
        "its fields (curl -F name=@file)"
    )


def _of_form(form: Any, side: Side, name: str) -> Any:
    hint = side.hint
    parts: dict[str, Any] = {
        **{key: texts if len(texts) > 1 else texts[0] for key, texts in form.fields.items()},
        **form.files,
    }
    if is_file(hint) or admits(hint, str):
        if len(parts) != 1:
            raise InvalidInput(
                f"model {name!r} takes one {_spelled(hint)}; the form has {len(parts)} parts"
                + (f": {', '.join(parts)}" if parts else "")
            )
        (value,) = parts.values()
        if isinstance(value, str) and is_file(hint):
            value = value.encode()
        elif isinstance(value, bytes) and not is_file(hint):
            value = _text(value)
        return side.codec.decode_form(value)
    hints = field_hints(hint)
    return side.codec.decode_form(
        {key: _of_field(value, hints.get(key)) for key, value in parts.items()}
    )


def _of_field(value: Any, hint: Any) -> Any:
    """One field of a record. A file for a text becomes that text; other fields are read as JSON."""
    if known(hint) is None:
        return value
    if isinstance(value, bytes):
        return _text(value) if admits(hint, str) and not is_file(hint) else value
    if isinstance(value, str) and is_file(hint):
        return value.encode()
    if not isinstance(value, str) or admits(hint, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value  # the check reports it


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the text is not UTF-8: {error}") from error


def _spelled(hint: Any) -> str:
    kind = plain(hint)
    return "an object" if isinstance(kind, type) and issubclass(kind, Mapping) else spelled(kind)
