import contextlib
import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InputTooLarge, InvalidInput
from headway.wire.compression import choose_encoding, compress, decompress


@given(st.binary(max_size=2000), st.sampled_from(["gzip", "deflate"]))
def test_what_is_packed_unpacks(body: bytes, encoding: str) -> None:
    assert decompress(compress(body, encoding), limit=2000) == body


def test_bare_deflate_and_several_gzip_members_are_understood() -> None:
    packer = zlib.compressobj(wbits=-15)
    assert decompress(packer.compress(b"abc") + packer.flush(), limit=3) == b"abc"
    assert decompress(gzip.compress(b"ab") + gzip.compress(b"cd"), limit=4) == b"abcd"


def test_a_bomb_is_stopped_at_the_limit() -> None:
    with pytest.raises(InputTooLarge) as caught:
        decompress(gzip.compress(bytes(10_000_000)), limit=1000)
    assert caught.value.limit == 1000
    with pytest.raises(InputTooLarge):
        decompress(gzip.compress(b"ab") + gzip.compress(b"cd"), limit=3)


@pytest.mark.parametrize(
    "body", [b"not packed", gzip.compress(b"abc" * 99)[:-9], gzip.compress(b"") * 1000]
)
def test_broken_input_is_the_callers_error(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        decompress(body, limit=1000)


@given(st.binary(max_size=200))
def test_any_bytes_unpack_or_are_refused(body: bytes) -> None:
    with contextlib.suppress(InvalidInput, InputTooLarge):
        decompress(body, limit=10_000)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.1, deflate;q=0.9", "deflate"),
        ("gzip;q=0", None),
        ("br, *", None),
        ("identity", None),
        ("gzip;q=x", None),
        ("", None),
    ],
)
def test_the_encoding_is_the_callers_choice(accept: str, chosen: str | None) -> None:
    assert choose_encoding(accept) == chosen
