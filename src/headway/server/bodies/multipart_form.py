"""Uploads: a `multipart/form-data` body as fields and files, with a limit on everything."""

import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, get_origin

import msgspec

from headway.errors import InputTooLarge, InvalidInput, NotInstalled

Fields = TypeVar("Fields", bound=msgspec.Struct)
MAX_PARTS = 64
MAX_FIELD_BYTES = 64 * 2**10
_FORM = "multipart/form-data"
_NEEDED = "PushMultipartParser"


@dataclass(frozen=True, slots=True)
class MultipartForm:
    fields: Mapping[str, list[str]]
    files: Mapping[str, bytes]

    def fields_of(self, kind: type[Fields]) -> Fields:
        """The form as a struct of this kind: bytes are a file, a list's field may be repeated, and
        an empty text counts as absent. Raises InvalidInput, which names the field first."""
        known = {each.encode_name: each for each in msgspec.structs.fields(kind)}
        for name in (*self.fields, *self.files):
            if name not in known:
                raise InvalidInput(f"{name}: there is no such field; there are {', '.join(known)}")
        given = {name: self._given(name, field) for name, field in known.items()}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            what, _, name = str(error).partition(" - at `$.")
            raise InvalidInput(f"{name.rstrip('`')}: {what}") from error

    def _given(self, name: str, field: msgspec.structs.FieldInfo) -> Any:
        if field.type is bytes:
            return self._file(name)
        if name in self.files:
            raise InvalidInput(f"{name}: a text is expected, not a file")
        texts = self.fields.get(name, [])
        if get_origin(field.type) is list:
            return texts
        if len(texts) > 1:
            raise InvalidInput(f"{name}: is given {len(texts)} times")
        text = texts[0] if texts else ""
        if field.required and not text:
            raise InvalidInput(f"{name}: is missing")
        return text or None

    def _file(self, name: str) -> bytes:
        if name in self.files:
            return self.files[name]
        if name in self.fields:
            raise InvalidInput(f"{name}: a file with a name is expected, not a field")
        raise InvalidInput(f"{name}: the file is missing")


def read_form(content_type: str, body: bytes) -> MultipartForm:
    """Raises InvalidInput, InputTooLarge, NotInstalled. For a thread: it may take a while."""
    multipart = _import()
    kind, options = multipart.parse_options_header(content_type)
    if kind != _FORM or not options.get("boundary"):
        raise InvalidInput(f"the body must be {_FORM} with a boundary, not {content_type!r}")
    fields: dict[str, list[str]] = {}
    files: dict[str, bytes] = {}
    try:
        for part, content in _parts(multipart, options["boundary"], body):
            if part.filename is not None:
                if part.name in files:
                    raise InvalidInput(f"{part.name}: the file is given twice")
                files[part.name] = content
            elif len(content) > MAX_FIELD_BYTES:
                raise InputTooLarge(
                    f"{part.name}: a field of {len(content)} bytes; at most {MAX_FIELD_BYTES}",
                    limit=MAX_FIELD_BYTES,
                )
            else:
                fields.setdefault(part.name, []).append(content.decode())
    except multipart.ParserLimitReached as error:
        raise InputTooLarge(
            f"the form has too many or too large parts: {error}; at most {MAX_PARTS} parts",
            limit=MAX_PARTS,
        ) from error
    except (multipart.MultipartError, ValueError) as error:
        raise InvalidInput(f"the form cannot be read: {error}") from error
    return MultipartForm(fields, files)


def _parts(multipart: Any, boundary: str, body: bytes) -> Iterator[tuple[Any, bytes]]:
    parser = multipart.PushMultipartParser(
        boundary, content_length=len(body), max_segment_count=MAX_PARTS, strict=True
    )
    with parser:
        part, pieces = None, list[bytes]()
        for event in (*parser.parse(body), *parser.parse(b"")):
            if isinstance(event, multipart.MultipartSegment):
                part, pieces = event, []
            elif event is None:
                assert part is not None
                yield part, b"".join(pieces)
            else:
                pieces.append(bytes(event))


@functools.cache
def _import() -> Any:
    """The library of the package `multipart`. Another one, `python-multipart`, which FastAPI needs,
    has a module of the same name, which is found first where both are installed."""
    with suppress(ImportError):
        module = importlib.import_module("multipart")
        if hasattr(module, _NEEDED):
            return module
    with suppress(importlib.metadata.PackageNotFoundError, OSError):
        file = importlib.metadata.distribution("multipart").locate_file("multipart.py")
        spec = importlib.util.spec_from_file_location("headway_multipart", str(file))
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise NotInstalled(
        "this server cannot read uploads until its operator runs: pip install 'headway[multipart]'"
    )
