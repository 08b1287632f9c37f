"""gzip and deflate, both ways, with a limit on what a small body may grow to.

Answers are compressed only where the route allows it: clients that advertise gzip by default do
not all unpack what is not an inference.
"""

import asyncio
import zlib

from headway.errors import InputTooLarge, InvalidInput
from headway.wire.messages import Request, Response

_LARGE = 64 * 2**10  # from here on packing is worth a thread: about a millisecond of zlib
_MOST_MEMBERS = 16  # of one gzip body
_WORTH_IT = 512
# zlib's words: gzip or zlib by its header; bare deflate; gzip; zlib.
_AUTO, _RAW, _GZIP, _ZLIB = 47, -15, 31, 15
_STEP_IN, _STEP_OUT = 64 * 2**10, 2**20  # bytes that are packed or unpacked in one go
_LEVEL = 1  # on the path of a request: four times as fast as the default, a little larger


def decompress(body: bytes, limit: int) -> bytes:
    """Decompress gzip (of any number of members), zlib, or bare deflate as some clients send it."""
    try:
        try:
            return _decompress(body, _AUTO, limit)
        except zlib.error:
            return _decompress(body, _RAW, limit)
    except zlib.error as error:
        raise InvalidInput(f"the body is not valid gzip or deflate: {error}") from error


async def compress_answer(request: Request, response: Response) -> None:
    """Compress the answer in place, if the caller accepts that and it saves enough."""
    asked = request.headers.get("accept-encoding")
    if asked is None or response.status != 200 or len(response.body) < _WORTH_IT:
        return
    encoding = choose_encoding(asked)
    if encoding is None or any(name.lower() == "content-encoding" for name, _ in response.headers):
        return
    if len(response.body) > _LARGE:
        body = response.body
        response.body = await asyncio.to_thread(compress, body, encoding)
    else:
        response.body = compress(response.body, encoding)
    added = (("Content-Encoding", encoding), ("Vary", "Accept-Encoding"))
    response.headers = (*response.headers, *added)


def is_worth_it(body: bytes) -> bool:
    return len(body) >= _WORTH_IT


def compress(body: bytes, encoding: str) -> bytes:
    """Compress with zlib, which lets other threads run."""
    # "deflate" is, in HTTP, the zlib format.
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _ZLIB if encoding == "deflate" else _GZIP)
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
    view, at, room = memoryview(body), 0, limit
    for _ in range(_MOST_MEMBERS):
        unpacker = zlib.decompressobj(format_bits)
        while not unpacker.eof:
            data = unpacker.unconsumed_tail
            if not data:
                data, at = view[at : at + _STEP_IN].tobytes(), at + _STEP_IN
            piece = unpacker.decompress(data, min(_STEP_OUT, room + 1))
            if not (data or piece):
                raise zlib.error("it ends too early")
            room -= len(piece)
            if room < 0:
                raise InputTooLarge(f"the body unpacks to more than {limit} bytes", limit=limit)
            pieces.append(piece)
        at = min(at, len(view)) - len(unpacker.unused_data)
        if at == len(view):
            return b"".join(pieces)

    raise zlib.error(f"it has more than {_MOST_MEMBERS} members")
