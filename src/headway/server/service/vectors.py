"""The common part of the embeddings' routes: texts in, vectors out in the form asked for."""

import base64
from typing import Any, TypeAlias

import numpy

from headway.errors import InvalidInput
from headway.hosting.registry import ServedModel

Array: TypeAlias = numpy.ndarray[Any, Any]
MAX_INPUTS = 2048  # in one request, as OpenAI has it


def texts_of(given: str | list[Any], field: str) -> list[str | list[int]]:
    """A text, a list of texts, one list of token ids, or several: as OpenAI takes them."""
    if isinstance(given, str):
        return [given]
    if given and all(type(each) is int for each in given):
        return [given]
    if not given:
        raise InvalidInput(f"{field}: at least one text is expected")
    if len(given) > MAX_INPUTS:
        raise InvalidInput(f"{field}: {len(given)} texts; at most {MAX_INPUTS} are allowed")
    for index, each in enumerate(given):
        is_ids = isinstance(each, list) and all(type(token) is int for token in each)
        if not isinstance(each, str) and not is_ids:
            raise InvalidInput(f"{field}[{index}]: a text or a list of token ids is expected")
    return given


def token_ids_of(served: ServedModel) -> dict[str, Any] | None:
    """The kind of token ids that the model takes; None: it takes none."""
    found: dict[str, Any] | None = getattr(getattr(served, "model", None), "token_ids", None)
    return found


def check_ids(texts: list[str | list[int]], served: ServedModel, field: str) -> None:
    """Check token ids, which clients that count tokens send in place of texts. Raises
    InvalidInput."""
    if token_ids_of(served) is None and any(not isinstance(each, str) for each in texts):
        raise InvalidInput(
            f"{field}: model {served.name!r} takes texts, not token ids "
            "(LangChain: check_embedding_ctx_length=False)"
        )


def shortened(vector: Any, dimensions: int | None, field: str) -> Array:
    """The vector as little-endian float32; or its first `dimensions`, scaled to length 1 again."""
    cut = first_numbers(vector, dimensions, field)
    if dimensions is None:
        return cut
    length = float(numpy.linalg.norm(cut))
    return cut / length if length else cut


def first_numbers(vector: Any, dimensions: int | None, field: str) -> Array:
    """The vector as little-endian float32; or its first `dimensions`, as they are."""
    values: Array = numpy.asarray(vector, dtype="<f4")
    if dimensions is not None and dimensions > len(values):
        raise InvalidInput(f"{field}: {dimensions} is more than the model gives: {len(values)}")
    return values[:dimensions]


def base64_of(values: Array) -> str:
    return base64.b64encode(values.astype("<f4", copy=False).tobytes()).decode("ascii")


def bits_of(values: Array) -> Array:
    """One bit for each dimension: is it above 0? Eight bits to a byte, the first one highest."""
    return numpy.packbits(values > 0)


def tokens_in(results: list[Any]) -> int:
    """The tokens that were read for these results, if the model reports them."""
    return sum(getattr(each, "tokens", 0) for each in results)
