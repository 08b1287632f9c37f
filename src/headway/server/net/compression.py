"""gzip and deflate, both ways, with a limit on what a small body may grow to.

Answers are compressed only where the route allows it: clients that advertise gzip by default do
not all unpack what is not an inference.
"""

import asyncio
import zlib

from headway.errors import InputTooLarge, InvalidInput
from headway.server.net.messages import Request, Response

_LARGE = 64 * 2**10  # from here on packing is worth a thread: about a millisecond of zlib
_MOST_MEMBERS = 16  # of one gzip body; each costs a copy of the rest
_WORTH_IT = 512
_AUTO, _RAW, _GZIP = 47, -15, 31  # zlib's words: gzip or zlib by its header; bare deflate; gzip
_LEVEL = 1  # on the path of a request: four times as fast as the default, a little larger


async def decompress_body(request: Request, *, limit: int) -> None:
    """Replace the body by what it stands for. Raises InvalidInput or InputTooLarge."""
    if not request.body:
        return
    for encoding in reversed(request.headers["content-encoding"].split(",")):
        name = encoding.strip().lower()
        if name in ("", "identity"):
            continue
        if name not in ("gzip", "x-gzip", "deflate"):
            raise InvalidInput(f"Content-Encoding {name!r} is not known; there are: gzip, deflate")
        # Always in a thread: a thousandth of the limit can unpack to all of it.
        request.body = await asyncio.to_thread(decompress, request.body, limit=limit)


def decompress(body: bytes, *, limit: int) -> bytes:
    """gzip (of any number of members), zlib, or bare deflate as some clients send it."""
    try:
        try:
            return _decompress(body, _AUTO, limit)
        except zlib.error:
            return _decompress(body, _RAW, limit)
    except zlib.error as error:
        raise InvalidInput(f"the body is not valid gzip or deflate: {error}") from error


async def compress_answer(request: Request, response: Response) -> None:
    """In place, where the caller asks for it and it pays."""
    asked = request.headers.get("accept-encoding")
    if asked is None or response.status != 200 or len(response.body) < _WORTH_IT:
        return
    encoding = choose_encoding(asked)
    if encoding is None or any(name.lower() == "content-encoding" for name, _ in response.headers):
        return
    if len(response.body) > _LARGE:
        response.body = await asyncio.to_thread(compress, response.body, encoding)
    else:
        response.body = compress(response.body, encoding)
    added = (("Content-Encoding", encoding), ("Vary", "Accept-Encoding"))
    response.headers = (*response.headers, *added)


def is_worth_it(body: bytes) -> bool:
    return len(body) >= _WORTH_IT


def compress(body: bytes, encoding: str) -> bytes:
    if encoding == "deflate":  # in HTTP that is the zlib format
        return zlib.compress(body, _LEVEL)
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()


def choose_encoding(accept: str) -> str | None:
    """The best of ours that the caller takes. `*` alone asks for nothing in particular."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, _, parameters = part.partition(";")
        weights[name.strip()] = _weight_of(parameters)
    best = max(("gzip", "deflate"), key=lambda name: weights.get(name, 0.0))
    return best if weights.get(best, 0.0) > 0 else None


def _weight_of(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _decompress(body: bytes, format_bits: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    room = limit
    for _ in range(_MOST_MEMBERS):
        unpacker = zlib.decompressobj(format_bits)
        piece = unpacker.decompress(body, room + 1)
        room -= len(piece)
        if room < 0:
            raise InputTooLarge(f"the body unpacks to more than {limit} bytes", limit=limit)
        if not unpacker.eof:
            raise zlib.error("it ends too early")
        pieces.append(piece)
        body = unpacker.unused_data
        if not body:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    raise zlib.error(f"it has more than {_MOST_MEMBERS} members")
