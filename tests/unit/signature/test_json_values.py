"""Any JSON: values by what a model's hints say, with defaults, and the place of every mistake."""

import dataclasses
import enum
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import numpy
import numpy.typing
import pydantic
import pytest

import headway
from headway import ConfigError, InputTooLarge, InvalidInput, ModelFailed, Tensor
from headway.signature import Side, signature_of
from headway.signature.foreign import MAX_OBJECTS, check_objects, failing_fast
from headway.signature.values import takes_object_with


class Box(TypedDict):
    left: int
    top: int


@dataclasses.dataclass
class Options:
    top_k: int = 3
    mode: Literal["fast", "good"] = "fast"


@dataclasses.dataclass
class Ask:
    text: str
    options: Options = dataclasses.field(default_factory=Options)
    boxes: list[Box] = dataclasses.field(default_factory=list)
    limit: float | None = None


class Loose(TypedDict):
    name: str
    age: NotRequired[int]


class Colour(enum.Enum):
    RED = "red"


class Corner(NamedTuple):
    x: int
    y: int = 0


class Item(pydantic.BaseModel):
    name: str
    price: float = pydantic.Field(default=1.0, gt=0)
    tags: list[str] = []


class Strict(pydantic.BaseModel, strict=True):
    corner: tuple[int, int]


class Open(pydantic.BaseModel, extra="allow"):
    name: str = ""


@dataclasses.dataclass
class Cart:
    items: list[Item]


@dataclasses.dataclass
class Wary:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("number must not be negative")
        if self.number == 13:
            raise KeyError("a bug of the model's")


@dataclasses.dataclass
class Cat:
    lives: int


@dataclasses.dataclass
class Dog:
    tricks: list[str]


def side(hint: Any) -> Side:
    class Made(headway.Model[Any, Any]):
        def predict(self, items: list[Any]) -> list[Any]:
            return items

    if hint is not None:
        Made.predict.__annotations__.update({"items": list[hint]})
    return signature_of(Made()).input


GOOD = [
    (None, {"anything": [1, None]}, {"anything": [1, None]}),
    (dict, {"a": 1}, {"a": 1}),
    (list[dict], [{"a": 1}], [{"a": 1}]),
    (dict[str, Any], {"a": [1]}, {"a": [1]}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (str | int, 3, 3),
    (str | None, None, None),
    (Literal["a", "b"], "b", "b"),
    (Colour, "red", Colour.RED),
    (Corner, [1], Corner(1)),
    (tuple[int, str], [1, "a"], (1, "a")),
    (bytes | None, "cg==", b"r"),
    (Ask, {"text": "a"}, Ask("a")),
    (Ask, {"text": "a", "options": {"top_k": 5}}, Ask("a", Options(5))),
    (Ask, {"text": "a", "limit": None, "boxes": [{"left": 1, "top": 2}]},
     Ask("a", boxes=[{"left": 1, "top": 2}])),
    (Loose, {"name": "a"}, {"name": "a"}),
    (Loose, {"name": "a", "age": 3}, {"name": "a", "age": 3}),
    (Item, {"name": "a"}, Item(name="a")),
    (Item, {"name": "a", "price": "2.5", "more": 1}, Item(name="a", price=2.5)),
    (list[Item], [{"name": "a"}], [Item(name="a")]),
    (Item | None, None, None),
    (Strict, {"corner": [1, 2]}, Strict(corner=(1, 2))),
    (Annotated[int, pydantic.Field(gt=0)], 3, 3),
    (Cart, {"items": [{"name": "a"}]}, Cart([Item(name="a")])),
    (Cat | Dog, {"tricks": ["sit"]}, Dog(["sit"])),
    (Cat | Dog, {"lives": 9}, Cat(9)),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "made"), GOOD, ids=str)
def test_json_becomes_what_the_hint_says_from_text_and_from_objects(
    hint: Any, value: Any, made: Any
) -> None:
    found = side(hint)
    text = msgspec.json.encode(value)
    for each in (found.decode(value), found.codec.read(text), found.decode(made)):
        assert each == made
        assert type(each) is type(made)
    if found.tensors[0].content_type:
        rows = numpy.array([text, text], dtype=object)
        assert found.values({"input": rows}) == [made, made]


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (list[dict], {"a": 1}, "the input: Expected `array`, got `object`"),
        (str | int, 1.5, "the input: Expected `int | str`, got `float`"),
        (Literal["a", "b"], "c", "the input: 'c' is unknown; there are 'a', 'b'"),
        (Ask, {}, "input 'text' is missing"),
        (Ask, {"txt": "a"}, "input 'txt' is unknown; there are text (and optionally boxes, limit"),
        (Ask, {"text": 3}, "input 'text': Expected `str`, got `int`"),
        (Ask, {"text": "", "boxes": [{"left": 1}]}, "input 'boxes[0].top' is missing"),
        (
            Ask,
            {"text": "", "options": {"mode": "x"}},
            "input 'options.mode': 'x' is unknown; there are '",
        ),
        (Ask, ["a"], "an object is expected, with text"),
        (Loose, {"age": 3}, "input 'name' is missing"),
        (Item, {"price": -1}, "input 'name': Field required; input 'price': Input should be great"),
        (list[Item], [{"name": "a"}, {}], "input '1.name': Field required"),
        (Item, 3, "the input: "),
        (Strict, {"corner": ["1", 2]}, "input 'corner.0': Input should be a valid integer"),
        (
            Cart,
            {"items": [{"name": 3}]},
            "input 'items[0]': name: Input should be a valid string",
        ),
        (Wary, {"number": -1}, "the input: number must not be negative"),
        (Cat | Dog, {"paws": 4}, "it is not one of "),
        (numpy.ndarray, "text", "an array of numbers is expected"),
    ],
    ids=str,
)
def test_a_mistake_is_named_by_its_place(hint: Any, value: Any, message: str) -> None:
    found = side(hint)
    for make in (lambda: found.decode(value), lambda: found.codec.read(msgspec.json.encode(value))):
        with pytest.raises(InvalidInput) as raised:
            make()
        assert message in str(raised.value)


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidInput, match=r"'zzz.* is unknown; there are 'a', 'b'") as raised:
        side(Literal["a", "b"]).decode("z" * 100_000)
    assert len(str(raised.value)) < 200


def test_a_bug_in_the_models_own_check_is_not_the_callers_mistake() -> None:
    with pytest.raises(ModelFailed, match="KeyError"):
        side(Wary).decode({"number": 13})
    with pytest.raises(ModelFailed, match="KeyError"):
        side(Wary).codec.read(b'{"number": 13}')


def test_what_is_not_json_is_said_by_whoever_reads_it() -> None:
    for hint in (None, dict, Ask, Item):
        with pytest.raises(msgspec.DecodeError):
            side(hint).codec.read(b"{")


@pytest.mark.parametrize(
    ("hint", "dtype"), [(numpy.ndarray, "int64"), (numpy.typing.NDArray[numpy.float32], "float32")]
)
def test_a_bare_array_takes_a_list_of_numbers(hint: Any, dtype: str) -> None:
    array = side(hint).decode([[1, 2], [3, 4]])
    assert (array.dtype.name, array.tolist()) == (dtype, [[1, 2], [3, 4]])


def test_defaults_of_a_record_with_arrays_are_filled_in() -> None:
    @dataclasses.dataclass
    class Scaled:
        image: Annotated[numpy.ndarray, Tensor("image", "float32", (-1, 2))]
        scale: float = 2.0

    Scaled.__annotations__["image"] = Annotated[numpy.ndarray, Tensor("image", "float32", (-1, 2))]
    Scaled.__annotations__["scale"] = float
    made = side(Scaled).decode({"image": [1, 2]})
    assert (made.image.dtype.name, made.scale) == ("float32", 2.0)
    with pytest.raises(InvalidInput, match="input 'image' is missing"):
        side(Scaled).decode({"scale": 1.0})
    assert side(Scaled).json_schema()["required"] == ["image"]


def test_a_class_that_no_json_becomes_is_refused_with_what_to_write() -> None:
    class Mine:
        pass

    with pytest.raises(ConfigError, match=r"JSON cannot become a Mine: write prepare\(self, raw"):
        side(Mine)
    with pytest.raises(ConfigError, match=r"cannot be checked.*a pydantic model, or Any"):
        side(list[Cat | Dog])


def test_a_single_item_where_a_batch_is_due_is_refused_with_what_to_write() -> None:
    class One(headway.Model[Any, Any]):
        def predict(self, items: str) -> list[str]:  # type: ignore[override]
            return [items]

    class Whole(headway.Model[Any, Any]):
        def predict(self, items: list[str]) -> str:
            return ""

    with pytest.raises(ConfigError, match=r"takes the list of a batch's items.*items: list\[str\]"):
        signature_of(One())
    with pytest.raises(ConfigError, match=r"one result for each item.*-> list\[str\]"):
        signature_of(Whole())


@pytest.mark.parametrize(
    ("hint", "takes"),
    [
        (None, True),
        (dict, True),
        (dict[str, Any] | None, True),
        (Cart, True),
        (Open, True),
        (str | dict[str, int], True),
        (str, False),
        (list[int], False),
        (Ask, False),
        (Loose, False),
        (Item, False),
        (Literal["a"], False),
    ],
    ids=str,
)
def test_a_batch_form_is_only_what_cannot_be_a_value(hint: Any, takes: bool) -> None:
    assert takes_object_with(side(hint).json_schema(), "items") is takes


def test_schemas_come_from_the_hints() -> None:
    assert side(None).json_schema() == {}
    assert side(Item).json_schema()["required"] == ["name"]
    schema = side(Ask).json_schema()
    assert (schema["required"], schema["additionalProperties"]) == (["text"], False)
    assert schema["$defs"]["Options"]["properties"]["mode"]["default"] == "fast"
    assert side(Cart).json_schema()["properties"]["items"]["items"]["required"] == ["name"]


def test_results_of_any_kind_become_json() -> None:
    class Gives(headway.Model[Any, Any]):
        def predict(self, items: list[Any]) -> list[Any]:
            return items

    output = signature_of(Gives()).output
    rows = [Item(name="a"), {"x": numpy.float32(0.5)}, [numpy.arange(2)], Ask("t")]
    texts = [msgspec.json.decode(text) for text in output.arrays(rows)["output"]]
    assert texts[0] == {"name": "a", "price": 1.0, "tags": []}
    assert texts[1:3] == [{"x": 0.5}, [[0, 1]]]
    assert texts[3]["options"] == {"top_k": 3, "mode": "fast"}
    with pytest.raises(ModelFailed, match="output 'output' is not JSON: object has no JSON form"):
        output.arrays([object()])


def test_objects_are_counted_in_one_pass_whatever_the_text() -> None:
    """A string that does not end would have the search begin again at each of its quotes."""
    braces = b"{" * (MAX_OBJECTS + 1)
    check_objects(b'"' + b'\\"' * 200_000 + braces)
    check_objects(b'"' + braces + b'"')
    with pytest.raises(InputTooLarge):
        check_objects(b'"an \\" end"' + braces)


def test_of_many_mistakes_in_a_list_only_the_first_is_looked_for() -> None:
    adapter = pydantic.TypeAdapter(list[int])
    fast = failing_fast(adapter)
    assert fast is not adapter
    assert fast.validate_python([1, 2]) == [1, 2]
    with pytest.raises(pydantic.ValidationError) as caught:
        fast.validate_python(["a", "b", "c"])
    assert caught.value.error_count() == 1
