"""Examples fit the schemas they are made of."""

import dataclasses
import datetime
import enum
import uuid
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

import headway
from headway.server.service.examples import example_of
from headway.signature import signature_of


class Colour(enum.Enum):
    RED = "red"


class Part(TypedDict):
    name: str
    size: tuple[int, float]


@dataclasses.dataclass
class Whole:
    parts: list[Part]
    colour: Colour
    when: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    key: uuid.UUID
    data: bytes
    small: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    many: Annotated[list[int], msgspec.Meta(min_length=3)]
    word: Annotated[str, msgspec.Meta(min_length=8)]
    maybe: int | None = None


class Node(pydantic.BaseModel):
    value: Literal["a", "b"]
    share: float = pydantic.Field(gt=0, lt=1)
    level: int = pydantic.Field(ge=3, le=9)
    children: list["Node"] = []


@pytest.mark.parametrize(
    "hint",
    [str, int, bytes, list[list[float]], tuple[int, str], Whole, Node, list[Node], Part | None],
    ids=str,
)
def test_an_example_is_taken_by_its_model(hint: Any) -> None:
    class Made(headway.Model[Any, Any]):
        def predict(self, items: list[Any]) -> list[Any]:
            return items

    Made.predict.__annotations__["items"] = list[hint]
    side = signature_of(Made()).input
    side.decode(example_of(side.json_schema()))
