"""Request bodies that are packed with gzip or deflate."""

from functools import partial

from headway.errors import InvalidInput
from headway.server.bodies.background import background
from headway.server.bodies.own_headers import timeout_s
from headway.wire.compression import decompress
from headway.wire.messages import Request


async def decompress_body(request: Request, *, limit: int) -> None:
    """Unpack the body, in place. Raises InvalidInput or InputTooLarge."""
    if not request.body:
        return
    for encoding in reversed(request.headers["content-encoding"].split(",")):
        name = encoding.strip().lower()
        if name in ("", "identity"):
            continue
        if name not in ("gzip", "x-gzip", "deflate"):
            raise InvalidInput(f"Content-Encoding {name!r} is not known; there are: gzip, deflate")
        # Never in the event loop: a thousandth of the limit can unpack to all of it.
        request.body = await background.run(
            partial(decompress, request.body, limit), timeout_s=timeout_s(request.headers)
        )
