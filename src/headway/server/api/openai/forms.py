"""Uploads: a `multipart/form-data` body as fields and files, with a limit on everything."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headway.errors import InputTooLarge, InvalidInput

MAX_PARTS = 64
MAX_FIELD_BYTES = 64 * 2**10
_FORM = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Form:
    fields: Mapping[str, list[str]]
    files: Mapping[str, bytes]

    def one(self, name: str) -> str | None:
        """A field that may be given once."""
        given = self.fields.get(name, [])
        if len(given) > 1:
            raise InvalidInput(f"{name}: it is given {len(given)} times")
        return given[0] if given else None

    def check_known(self, fields: Collection[str], *, files: Collection[str]) -> None:
        """Raises InvalidInput for a field that the route does not read."""
        for given, known in ((self.fields, fields), (self.files, files)):
            for name in given:
                if name not in known:
                    raise InvalidInput(f"{name}: it is unknown; there are {', '.join(known)}")

    def needed(self, name: str) -> str:
        value = self.one(name)
        if not value:
            raise InvalidInput(f"{name}: it is missing")
        return value

    def file(self, name: str) -> bytes:
        if name in self.files:
            return self.files[name]
        if name in self.fields:
            raise InvalidInput(f"{name}: a file is expected, with its name; this is a field")
        raise InvalidInput(f"{name}: the file is missing")


def read_form(content_type: str, body: bytes) -> Form:
    """Raises InvalidInput, InputTooLarge. For a thread: a large body takes a while."""
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
    return Form(fields, files)


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


def _import() -> Any:
    try:
        import multipart
    except ImportError as error:
        raise InvalidInput(
            "this server cannot read uploads until its operator runs: "
            "pip install 'headway[multipart]'"
        ) from error
    return multipart
