"""Bodies that cannot be read: the error says where."""

import msgspec
import pytest

from headway.errors import InvalidInput
from headway.server.bodies.json_body import decode_fields
from headway.server.service.errors import param_of
from headway.wire.messages import Request


class Asked(msgspec.Struct):
    texts: list[str] = []
    name: str = ""
    level: float = 0.0
    levels: list[float] = []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (rb'{"name": "\ud800"}', "name"),
        (rb'{"texts": ["a", "b\udFFFc"]}', "texts[1]"),
        (rb'{"other": {"deep": "\uD83D \ude42"}}', "other.deep"),
        (rb'{"a\ud800": 1}', None),
        (rb'"\ud800"', None),
    ],
)
async def test_half_of_a_surrogate_pair_is_named_by_its_field(
    body: bytes, field: str | None
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await decode_fields(Request("POST", "/", "", {}, body, "1"), Asked)
    assert param_of(caught.value) == field
    assert "half of a surrogate pair" in str(caught.value)


async def test_what_is_wrong_in_another_way_is_said_as_it_is() -> None:
    with pytest.raises(InvalidInput, match=r"^the body is not JSON: it is cut off$"):
        await decode_fields(Request("POST", "/", "", {}, rb'{"name": "\ud83d\ude42', "1"), Asked)


async def test_both_halves_are_a_character() -> None:
    body = rb'{"name": "\ud83d\ude42"}'
    found = await decode_fields(Request("POST", "/", "", {}, body, "1"), Asked)
    assert found.name == "\N{SLIGHTLY SMILING FACE}"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"level": 1e400}', "level"),
        (b'{"levels": [1, -1e999]}', "levels[1]"),
    ],
)
async def test_a_number_beyond_every_float_is_named_by_its_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidInput, match="the number is beyond every float") as caught:
        await decode_fields(Request("POST", "/", "", {}, body, "1"), Asked)
    assert param_of(caught.value) == field
