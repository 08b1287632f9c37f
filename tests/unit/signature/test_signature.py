"""Signatures: what type hints say about tensors, and rows to values and back."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, TypedDict

import numpy
import pytest

import headway
from headway import ConfigError, InvalidInput, ModelFailed, Tensor
from headway.signature import Side, signature_of

Image = Annotated[numpy.ndarray, Tensor("image", "float32", (-1, 2, 2))]


class Point(TypedDict):
    x: float
    label: str


@dataclasses.dataclass
class Pair:
    left: int
    right: bytes


def model_of(takes: Any, gives: Any) -> headway.Model[Any, Any]:
    class Made(headway.Model[Any, Any]):
        def predict(self, items: list[Any]) -> list[Any]:
            return items

    Made.predict.__annotations__.update({"items": list[takes], "return": list[gives]})
    return Made()


def side(hint: Any) -> Side:
    return signature_of(model_of(hint, int)).input


def objects(*values: object) -> numpy.ndarray[Any, Any]:
    array = numpy.empty(len(values), dtype=object)
    array[:] = values
    return array


# ---- what hints say


@pytest.mark.parametrize(
    ("hint", "dtype", "shape"),
    [
        (str, "object", (-1,)),
        (bytes, "object", (-1,)),
        (int, "int64", (-1,)),
        (float, "float64", (-1,)),
        (bool, "bool", (-1,)),
        (numpy.float32, "float32", (-1,)),
        (list[float], "float64", (-1, -1)),
        (list[list[int]], "int64", (-1, -1, -1)),
        (Sequence[str], "object", (-1, -1)),
        (Annotated[int, "a comment"], "int64", (-1,)),
    ],
    ids=str,
)
def test_a_hint_is_a_tensor(hint: Any, dtype: str, shape: tuple[int, ...]) -> None:
    signature = signature_of(model_of(hint, hint))
    assert signature.inputs == (Tensor("input", dtype, shape),)
    assert signature.outputs == (Tensor("output", dtype, shape),)


def test_an_annotated_array_names_its_tensor() -> None:
    assert side(Image).tensors == (Tensor("image", "float32", (-1, 2, 2)),)


@pytest.mark.parametrize("record", [Point, Pair])
def test_a_record_is_one_tensor_for_each_field(record: type) -> None:
    names = [tensor.name for tensor in side(record).tensors]
    assert names == list(record.__annotations__)


def test_prepare_and_finish_speak_for_the_callers() -> None:
    class Sentiment(headway.Model[list[str], float]):
        def prepare(self, raw: str) -> list[str]:
            return raw.split()

        def predict(self, items: list[list[str]]) -> list[float]:
            return [0.0 for _ in items]

        def finish(self, result: float) -> bool:
            return result > 0

    signature = signature_of(Sentiment())
    assert signature.inputs == (Tensor("input", "object", (-1,)),)
    assert signature.outputs == (Tensor("output", "bool", (-1,)),)
    assert signature.input_hint is str


def test_the_types_of_the_class_help_where_methods_say_nothing() -> None:
    class Bare(headway.Model[int, float]):
        def predict(self, items):  # type: ignore[no-untyped-def]
            return items

    signature = signature_of(Bare())
    assert [tensor.dtype for tensor in (*signature.inputs, *signature.outputs)] == [
        "int64",
        "float64",
    ]


def test_a_batch_may_come_back_as_one_annotated_array() -> None:
    class Scores(headway.Model[int, Any]):
        def predict(
            self, items: list[int]
        ) -> Annotated[numpy.ndarray, Tensor("score", "float32", (-1, 3))]:
            return numpy.zeros((len(items), 3), numpy.float32)

    assert signature_of(Scores()).outputs == (Tensor("score", "float32", (-1, 3)),)


def test_a_model_that_only_streams_gives_its_chunks() -> None:
    class Words(headway.Model[str, str]):
        def stream(self, items: list[str]) -> Iterator[list[str | None]]:
            yield [None for _ in items]

    signature = signature_of(Words())
    assert signature.inputs == (Tensor("input", "object", (-1,)),)
    assert signature.outputs == (Tensor("output", "object", (-1,)),)


def test_what_a_class_declares_comes_first() -> None:
    class Declared(headway.Model[Any, Any]):
        inputs: ClassVar = [Tensor("a", "float32", (-1, 2)), Tensor("b", "object", (-1,))]
        outputs: ClassVar = [Tensor("y", "float32", (-1,))]

        def predict(self, items: list[Any]) -> list[Any]:
            return items

    signature = signature_of(Declared())
    arrays = {"a": numpy.ones((1, 2), numpy.float32), "b": objects(b"x")}
    [value] = signature.input.values(arrays)
    assert value["a"].tolist() == [1, 1]
    assert value["b"] == "x"
    assert signature.outputs == (Tensor("y", "float32", (-1,)),)


@pytest.mark.parametrize(
    "hint", [Any, object, str | int, dict[str, int], list[dict[str, int]], numpy.ndarray], ids=str
)
def test_what_no_tensor_can_say_is_one_text_of_json_a_row(hint: Any) -> None:
    signature = signature_of(model_of(hint, hint))
    assert signature.inputs == (Tensor("input", "object", (-1,), "application/json"),)
    assert signature.outputs == (Tensor("output", "object", (-1,), "application/json"),)


def test_a_hint_that_names_nothing_is_found_at_start() -> None:
    class Broken(headway.Model[Any, Any]):
        def predict(self, items: "list[Missing]") -> list[int]:  # type: ignore[name-defined]  # noqa: F821
            return []

    with pytest.raises(ConfigError, match=r"Broken.predict: bad type hint.*Missing"):
        signature_of(Broken())


# ---- rows to values


@pytest.mark.parametrize(
    ("hint", "array", "values"),
    [
        (str, objects("grün".encode(), b""), ["grün", ""]),
        (str, objects("grün"), ["grün"]),
        (str, numpy.array(["a", "b"]), ["a", "b"]),
        (bytes, objects(b"\xff", "é"), [b"\xff", "é".encode()]),
        (int, numpy.array([1, 2]), [1, 2]),
        (int, numpy.array([[1], [2]]), [1, 2]),
        (float, numpy.array([0.5]), [0.5]),
        (bool, numpy.array([True, False]), [True, False]),
        (list[float], numpy.array([[0.5, 1.5]]), [[0.5, 1.5]]),
        (list[str], numpy.array([[b"a", b"b"]], dtype=object), [["a", "b"]]),
    ],
    ids=str,
)
def test_rows_become_the_values_of_the_hint(hint: Any, array: Any, values: list[Any]) -> None:
    found = side(hint).values({"input": array})
    assert found == values
    assert [type(each) for each in found] == [type(each) for each in values]


def test_rows_of_an_array_stay_arrays() -> None:
    rows = side(Image).values({"image": numpy.ones((3, 2, 2), numpy.float32)})
    assert [row.shape for row in rows] == [(2, 2)] * 3


def test_rows_become_records() -> None:
    arrays = {"x": numpy.array([1.0, 2.0]), "label": objects(b"a", b"b")}
    assert side(Point).values(arrays) == [{"x": 1.0, "label": "a"}, {"x": 2.0, "label": "b"}]
    arrays = {"left": numpy.array([1]), "right": objects(b"r")}
    assert side(Pair).values(arrays) == [Pair(1, b"r")]


@pytest.mark.parametrize(
    ("hint", "arrays", "message"),
    [
        (str, {"text": objects(b"a")}, r"the inputs are \['input'\], not \['text'\]"),
        (str, {}, r"the inputs are \['input'\], not \[\]"),
        (str, {"input": objects(b"a", b"\xff")}, "the input row 1 is not UTF-8"),
        (str, {"input": objects(3)}, "the input row 0 is not a text but 3"),
        (str, {"input": numpy.array([1])}, "the input has dtype int64, not object"),
        (int, {"input": numpy.array([1.0])}, "the input has dtype float64, not int64"),
        (
            int,
            {"input": numpy.array([[1, 2]])},
            r"the input has shape \[1, 2\]; \[-1\] is expected",
        ),
        (int, {"input": numpy.array(1)}, r"the input has shape \[\]; \[-1\] is expected"),
        (int, {"input": numpy.array([], int)}, "at least 1"),
        (Image, {"image": numpy.ones((1, 2, 3), numpy.float32)}, r"'image' has shape \[1, 2, 3\]"),
        (
            Point,
            {"x": numpy.ones(2), "label": objects(b"a")},
            r"the same number of rows.*'x': \[2\], 'label': \[1\]",
        ),
    ],
)
def test_a_mistake_names_its_tensor(hint: Any, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        side(hint).values(arrays)


# ---- results to rows


def output(hint: Any) -> Side:
    return signature_of(model_of(int, hint)).output


@pytest.mark.parametrize(
    ("hint", "results", "dtype", "values"),
    [
        (str, ["grün", ""], "object", ["grün".encode(), b""]),
        (bytes, [b"\xff"], "object", [b"\xff"]),
        (int, [1, 2], "int64", [1, 2]),
        (float, [1, 2.5], "float64", [1.0, 2.5]),
        (list[float], [[1.0, 2.0], (3.0, 4.0)], "float64", [[1, 2], [3, 4]]),
        (list[str], [["a", "b"]], "object", [[b"a", b"b"]]),
    ],
    ids=str,
)
def test_results_become_rows(hint: Any, results: Any, dtype: str, values: Any) -> None:
    array = output(hint).arrays(results)["output"]
    assert array.dtype == numpy.dtype(dtype)
    assert array.tolist() == values


def test_records_become_one_array_for_each_field() -> None:
    arrays = output(Point).arrays([{"x": 1.0, "label": "a"}, {"x": 2.0, "label": "b"}])
    assert arrays["x"].tolist() == [1.0, 2.0]
    assert arrays["label"].tolist() == [b"a", b"b"]
    assert output(Pair).arrays([Pair(1, b"r")])["left"].tolist() == [1]


Points = Annotated[list[Point], Tensor("points", "object", (-1,))]
POINTS = [{"x": 1.0, "label": "a"}, {"x": 2.0, "label": "b"}]


def test_what_has_more_parts_than_a_tensor_can_say_is_json() -> None:
    array = output(Points).arrays([POINTS, []])["points"]
    assert array.tolist() == [b'[{"x":1.0,"label":"a"},{"x":2.0,"label":"b"}]', b"[]"]
    assert output(Points).json_schema()["type"] == "array"
    assert side(Points).values({"points": array}) == [POINTS, []]
    assert side(Points).decode(POINTS) == POINTS
    for wrong in (b"[{}]", b"text", b"\xff", 3):
        with pytest.raises(InvalidInput, match="input 'points' row 1"):
            side(Points).values({"points": objects(b"[]", wrong)})


@pytest.mark.parametrize(
    ("hint", "results", "message"),
    [
        (str, [["a"]], "output 'output' is not object: \\['a'\\] is not a text"),
        (str, [3], "output 'output' is not object: 3 is not a text"),
        (int, ["a"], "output 'output' is not int64"),
        (list[float], [[1.0], [1.0, 2.0]], "output 'output' is not float64"),
        (Image, [numpy.ones(3)], r"output 'image' has shape \[1, 3\]; \[-1, 2, 2\] was promised"),
        (Point, [{"x": 1.0}], "lacks a field: 'label'"),
        (Pair, [3], "lacks a field"),
    ],
)
def test_a_result_that_breaks_its_promise_is_the_models_fault(
    hint: Any, results: Any, message: str
) -> None:
    with pytest.raises(ModelFailed, match=message):
        output(hint).arrays(results)


# ---- JSON


@pytest.mark.parametrize(
    ("hint", "value", "decoded"),
    [
        (str, "a", "a"),
        (float, 1, 1.0),
        (numpy.float32, 1.5, numpy.float32(1.5)),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (Pair, {"left": 1, "right": "cg=="}, Pair(1, b"r")),
        (Point, {"x": 1, "label": "a"}, {"x": 1.0, "label": "a"}),
    ],
)
def test_json_becomes_what_the_hint_says(hint: Any, value: Any, decoded: Any) -> None:
    assert side(hint).decode(value) == decoded


def test_json_lists_become_arrays_where_the_hint_is_one() -> None:
    array = side(Image).decode([[1, 2], [3, 4]])
    assert array.dtype == numpy.float32
    assert array.shape == (2, 2)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (str, 3, "the input: Expected `str`, got `int`"),
        (numpy.float32, "x", "the input"),
        (numpy.float32, [1], "the input"),
        (Image, [1, 2], r"input 'image': shape \[2\]; \[2, 2\] is expected"),
        (Image, [[1], [2, 3]], "input 'image'"),
        (Image, "text", "input 'image'"),
        (Point, {"x": 1}, "input 'label' is missing"),
        (Point, {"x": 1, "label": "a", "y": 2}, "input 'y' is unknown; there are label, x"),
        (Point, {"x": "a", "label": "b"}, "input 'x': Expected `float`"),
        (Pair, 3, "an object is expected, with left, right"),
    ],
)
def test_bad_json_names_its_tensor(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        side(hint).decode(value)


# ---- samples


def test_samples_come_from_the_hints_where_they_would_not_mislead() -> None:
    assert side(int).samples(varies=False) == [1]
    assert side(Image).samples(varies=True)[0].shape == (2, 2)
    assert len(side(str).samples(varies=False)) == 1
    lengths = [len(text.split()) for text in side(str).samples(varies=True)]
    assert lengths == [1, 8, 32, 128]
    assert isinstance(side(bytes).samples(varies=False)[0], bytes)
    assert side(list[float]).samples(varies=True) == []
    assert len(side(Point).samples(varies=True)) == 4


# ---- schemas


MOST = 3.4028234663852886e38
FLOAT32 = {"type": "number", "minimum": -MOST, "maximum": MOST}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (list[float], {"type": "array", "items": {"type": "number"}}),
        (numpy.float32, FLOAT32),
        (
            Image,
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "items": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": FLOAT32,
                },
            },
        ),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "number"}, "label": {"type": "string"}},
                "required": ["x", "label"],
                "additionalProperties": False,
            },
        ),
    ],
    ids=str,
)
def test_a_hint_is_a_json_schema(hint: Any, schema: dict[str, Any]) -> None:
    assert side(hint).json_schema() == schema


def test_rows_off_the_wire_are_the_models_own() -> None:
    class Clip(headway.Model[Any, Any]):
        inputs: ClassVar = [Tensor("x", "float32", (-1, 2))]
        outputs: ClassVar = [Tensor("y", "float32", (-1, 2))]

        def predict(self, items: list[Any]) -> list[Any]:
            return items

    wire = numpy.frombuffer(numpy.ones(4, "f4").tobytes(), "f4").reshape(2, 2)
    for row in signature_of(Clip()).input.values({"x": wire}):
        row[0] = 0.0
    assert wire.all()
