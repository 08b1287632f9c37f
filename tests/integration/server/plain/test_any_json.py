"""Models over any JSON, uploads and streams, on the plain route and over v2."""

import asyncio
import base64
import dataclasses
import io
import threading
import wave
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import msgspec
import numpy
import pydantic
import pytest
from PIL import Image
from small_server import STACKS, serving

import headway
from headway.models.functions import model_of

pytestmark = pytest.mark.real_time


@dataclasses.dataclass
class Question:
    text: str
    top_k: int = 3
    hints: list[str] = dataclasses.field(default_factory=list)
    limit: float | None = None


class Item(pydantic.BaseModel):
    name: str
    price: float = pydantic.Field(default=1.0, gt=0)


class Basket(TypedDict):
    items: list[int]


class Untyped(headway.Model):  # type: ignore[type-arg]
    def predict(self, items):  # type: ignore[no-untyped-def]
        return [{"got": item} for item in items]


class Capitals(headway.Model):  # type: ignore[type-arg]
    def prepare(self, names):  # type: ignore[no-untyped-def]
        if not all(name[:1].isupper() for name in names):
            raise headway.InvalidInput("names: capitals are expected")
        return names

    def predict(self, items):  # type: ignore[no-untyped-def]
        return [len(item) for item in items]


class Counts(headway.Model[Any, int]):
    def predict(self, items) -> list[int]:  # type: ignore[no-untyped-def]
        return [len(item) for item in items]


class Answers(headway.Model[Question, Any]):
    def predict(self, items: list[Question]) -> list[dict[str, Any]]:
        return [dataclasses.asdict(item) for item in items]


class Prices(headway.Model[Item, Item]):
    def predict(self, items: list[Item]) -> list[Item]:
        return [Item(name=item.name, price=2 * item.price) for item in items]


class Sums(headway.Model[Basket, int]):
    def predict(self, items: list[Basket]) -> list[int]:
        return [sum(item["items"]) for item in items]


def rows(items: list[dict[str, Any]]) -> list[str]:
    return [",".join(sorted(item)) for item in items]


async def test_any_json_is_served_and_checked_by_its_hints() -> None:
    functions = {"rows": model_of(rows, "tests:rows")()}
    async with serving(untyped=Untyped(), answers=Answers(), prices=Prices(), **functions) as http:
        answer = await http.post("/v1/predict/untyped", json=[{"a": None}, 3])
        assert answer.json() == {"got": [{"a": None}, 3]}
        answer = await http.post("/v1/predict/rows", json={"b": 1, "a": 2})
        assert answer.json() == "a,b"
        answer = await http.post("/v1/predict/answers", json={"text": "why?"})
        assert answer.json() == {"text": "why?", "top_k": 3, "hints": [], "limit": None}
        for body, told in [
            ({}, "input 'text' is missing"),
            ({"text": "a", "top_k": "3"}, "input 'top_k': Expected `int`, got `str`"),
            ({"text": "a", "topk": 3}, "input 'topk' is unknown; there are text"),
        ]:
            answer = await http.post("/v1/predict/answers", json=body)
            assert (answer.status_code, answer.json()["error"][: len(told)]) == (400, told)
        answer = await http.post("/v1/predict/prices", json={"name": "a", "price": 2})
        assert answer.json() == {"name": "a", "price": 4.0}
        answer = await http.post("/v1/predict/prices", json={"price": -1})
        assert answer.status_code == 400
        assert "input 'name': Field required; input 'price'" in answer.json()["error"]
        document = (await http.get("/openapi.json")).json()
        item = document["components"]["schemas"]["answers.item"]
        assert (item["required"], item["properties"]["top_k"]["default"]) == (["text"], 3)


async def test_a_models_own_refusal_of_a_value_that_it_takes_is_told_as_it_is() -> None:
    async with serving(capitals=Capitals()) as http:
        refused = await http.post("/v1/predict/capitals", json=["Anna", "bert"])
        assert refused.json()["error"] == "names: capitals are expected"


async def test_a_field_called_items_is_no_batch_and_batches_have_a_route_of_their_own() -> None:
    async with serving(sums=Sums(), untyped=Untyped(), answers=Answers()) as http:
        assert (await http.post("/v1/predict/sums", json={"items": [1, 2]})).json() == 3
        batch = {"items": [{"items": [1, 2]}, {"items": [3]}, {"item": 1}]}
        answer = await http.post("/v1/predict/sums/batch", json=batch)
        first, second, third = answer.json()["results"]
        assert (first, second) == (3, 3)
        assert "input 'item' is unknown" in third["error"]
        answer = await http.post("/v1/predict/answers", json={"items": [{"text": "a"}, {}]})
        assert answer.json()["results"][0]["text"] == "a"
        answer = await http.post("/v1/predict/answers/batch", json={"text": "a"})
        assert (answer.status_code, '{"items": [...]}' in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("stack", STACKS)
async def test_without_hints_items_are_neither_one_value_nor_several(stack: str) -> None:
    functions = {"rows": model_of(rows, "tests:rows")()}
    large = {"items": ["a" * 100_000]}  # decoded off the event loop
    async with serving(stack, untyped=Untyped(), counts=Counts(), **functions) as http:
        for name in ("untyped", "counts"):  # the second goes the direct way
            for body in ({"items": [1]}, {"items": 3}, large):
                answer = await http.post(f"/v1/predict/{name}", json=body)
                assert answer.status_code == 400
                assert f"POST them to /v1/predict/{name}/batch" in answer.json()["error"]
            body = {"items": [[1, 2], {"items": []}]}
            answer = await http.post(f"/v1/predict/{name}/batch", json=body)
            assert len(answer.json()["results"]) == 2
        answer = await http.post("/v1/predict/untyped", json={"items": [1], "more": 2})
        assert answer.json() == {"got": {"items": [1], "more": 2}}
        assert (await http.post("/v1/predict/rows", json={"items": [1]})).json() == "items"


async def test_v2_carries_what_no_tensor_can_say_as_json_and_says_so() -> None:
    async with serving(answers=Answers(), untyped=Untyped()) as http:
        metadata = (await http.get("/v2/models/answers")).json()
        [tensor] = metadata["inputs"]
        assert (tensor["datatype"], tensor["parameters"]) == (
            "BYTES",
            {"content_type": "application/json"},
        )
        asked = {"name": "input", "datatype": "BYTES", "shape": [2, 1]}
        asked["data"] = ['{"text": "a"}', '{"text": "b", "top_k": 1}']  # type: ignore[assignment]
        answer = await http.post("/v2/models/answers/infer", json={"inputs": [asked]})
        texts = [msgspec.json.decode(each) for each in answer.json()["outputs"][0]["data"]]
        assert [each["top_k"] for each in texts] == [3, 1]
        asked["data"] = ["{}", "{"]  # type: ignore[assignment]
        answer = await http.post("/v2/models/answers/infer", json={"inputs": [asked]})
        assert answer.status_code == 400
        assert "the input row 0: input 'text' is missing" in answer.json()["error"]


# ---- uploads


def png(width: int = 4, height: int = 2) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return file.getvalue()


@dataclasses.dataclass
class Photo:
    image: Image.Image
    caption: str = ""
    scale: float = 1.0
    tags: list[str] = dataclasses.field(default_factory=list)


class Sizes(headway.Model[Image.Image, Any]):
    def predict(self, items: list[Image.Image]) -> list[tuple[int, int]]:
        return [item.size for item in items]


class Photos(headway.Model[Photo, Any]):
    def predict(self, items: list[Photo]) -> list[Any]:
        return [[item.image.width * item.scale, item.caption, item.tags] for item in items]


class Lengths(headway.Model[bytes, int]):
    def predict(self, items: list[bytes]) -> list[int]:
        return [len(item) for item in items]


class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() for item in items]


class Mirror(headway.Model[Image.Image, Image.Image]):
    def predict(self, items: list[Image.Image]) -> list[Image.Image]:
        return [item.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for item in items]


class Beep(headway.Model[float, bytes]):
    def predict(self, items: list[float]) -> list[bytes]:
        return [_wav(item) for item in items]


class Page(headway.Model[str, str]):
    media_type = "text/html"

    def predict(self, items: list[str]) -> list[str]:
        return [f"<p>{item}</p>" for item in items]


def _wav(seconds: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setparams((1, 2, 8000, 0, "NONE", ""))
        clip.writeframes(numpy.zeros(int(8000 * seconds), "<i2").tobytes())
    return file.getvalue()


@pytest.mark.parametrize("stack", STACKS)
async def test_files_and_texts_are_taken_as_they_are(stack: str) -> None:
    image = {"Content-Type": "image/png"}
    async with serving(
        stack, sizes=Sizes(), photos=Photos(), lengths=Lengths(), shout=Shout(), untyped=Untyped()
    ) as http:
        answer = await http.post("/v1/predict/sizes", content=png(), headers=image)
        assert answer.json() == [4, 2]
        answer = await http.post("/v1/predict/sizes", files={"any": png()})
        assert answer.json() == [4, 2]
        answer = await http.post("/v1/predict/sizes", json=base64.b64encode(png()).decode())
        assert answer.json() == [4, 2]
        answer = await http.post("/v1/predict/photos", content=png(), headers=image)
        assert answer.json() == [4.0, "", []]
        form = {"caption": "a cat", "scale": "0.5", "tags": '["x"]'}
        answer = await http.post("/v1/predict/photos", data=form, files={"image": png()})
        assert answer.json() == [2.0, "a cat", ["x"]]
        audio = {"Content-Type": "audio/wav"}
        answer = await http.post("/v1/predict/lengths", content=b"\0\1\2", headers=audio)
        assert answer.json() == 3
        text = {"Content-Type": "text/plain; charset=utf-8"}
        answer = await http.post("/v1/predict/shout", content='"grün"'.encode(), headers=text)
        assert answer.json() == '"GRÜN"'
        answer = await http.post("/v1/predict/shout", files={"text": b"a"})
        assert answer.json() == "A"
        answer = await http.post("/v1/predict/untyped", data={"a": "1"}, files={"f": b"x"})
        assert answer.json() == {"got": {"a": "1", "f": "eA=="}}


@pytest.mark.parametrize("stack", STACKS)
async def test_a_wrong_upload_is_told(stack: str) -> None:
    async with serving(stack, sizes=Sizes(), photos=Photos(), answers=Answers()) as http:
        for model, given, told in [
            (
                "sizes",
                {"content": b"no", "headers": {"Content-Type": "image/png"}},
                "it is not an image in a known format: JPEG, PNG, WEBP, GIF, BMP",
            ),
            ("sizes", {"content": b"\x89PNG"}, "Content-Type: image/png"),
            ("sizes", {"files": {"a": png(), "b": png()}}, "takes one Image; the form has 2 parts"),
            ("photos", {"files": {"picture": png()}}, "input 'picture' is unknown"),
            ("photos", {"data": {"scale": "x"}, "files": {"image": png()}}, "input 'scale'"),
            ("photos", {"files": {"caption": b"\xff"}}, "not UTF-8"),
            ("answers", {"content": b"x", "headers": {"Content-Type": "audio/wav"}}, "send JSON"),
            ("answers", {"files": {"text": b"a", "top_k": b"x"}}, "input 'top_k'"),
        ]:
            answer = await http.post(f"/v1/predict/{model}", **given)  # type: ignore[arg-type]
            assert (answer.status_code, told in answer.json()["error"]) == (400, True), answer.text


def image_file(size: tuple[int, int], kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("L" if kind == "EPS" else "1", size).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("stack", STACKS)
async def test_an_image_of_strangers_is_of_a_known_format_and_a_bearable_size(stack: str) -> None:
    async with serving(stack, sizes=Sizes()) as http:
        for content, status, told in [
            (image_file((8_000, 8_000), "PNG"), 413, "64000000 pixels; at most 50000000"),
            (image_file((8, 8), "TIFF"), 400, "JPEG, PNG, WEBP, GIF, BMP"),
            (image_file((8, 8), "EPS"), 400, "JPEG, PNG, WEBP, GIF, BMP"),
            (image_file((8, 8), "BMP"), 200, ""),
        ]:
            sent = {"content": content, "headers": {"Content-Type": "image/png"}}
            for given in (sent, {"json": base64.b64encode(content).decode()}):
                answer = await http.post("/v1/predict/sizes", **given)  # type: ignore[arg-type]
                assert answer.status_code == status, answer.text
                assert told in answer.text


class Order(pydantic.BaseModel):
    items: list[Item]
    note: str = ""


class Orders(headway.Model[Order, int]):
    def predict(self, items: list[Order]) -> list[int]:
        return [len(item.items) for item in items]


@pytest.mark.parametrize("stack", STACKS)
async def test_pydantic_reads_so_many_objects_in_one_go_and_names_a_few_mistakes(
    stack: str,
) -> None:
    async with serving(stack, orders=Orders(), prices=Prices()) as http:
        answer = await http.post("/v1/predict/orders", json={"items": [{"name": "a"}] * 20_000})
        assert (answer.status_code, "more than 16384 objects" in answer.text) == (413, True)
        wordy = {"items": [{"name": "a"}] * 9, "note": '[{"' * 20_000}
        assert (await http.post("/v1/predict/orders", json=wordy)).json() == 9
        for wrong, places in ((4_000, 5), (10_000, 1)):  # of many, the first of a list
            answer = await http.post("/v1/predict/orders", json={"items": [1] * wrong})
            assert (answer.status_code, answer.text.count("items.")) == (400, places)
        right = {"items": [{"name": "a", "price": 2}] * 8_000, "note": "b"}
        assert (await http.post("/v1/predict/orders", json=right)).json() == 8_000
        many = {"items": [{"name": "a"}] * 20_000}
        answer = await http.post("/v1/predict/prices/batch", json=many)
        assert answer.status_code == 200
        assert len(answer.json()["results"]) == 20_000


@pytest.mark.parametrize("stack", STACKS)
async def test_files_are_answered_with_their_type(stack: str) -> None:
    async with serving(stack, mirror=Mirror(), beep=Beep(), page=Page()) as http:
        answer = await http.post("/v1/predict/mirror", files={"image": png()})
        assert answer.headers["content-type"] == "image/png"
        assert Image.open(io.BytesIO(answer.content)).size == (4, 2)
        answer = await http.post("/v1/predict/beep", json=0.01)
        assert (answer.headers["content-type"], answer.content[:4]) == ("audio/wav", b"RIFF")
        answer = await http.post(
            "/v1/predict/beep", json=0.01, headers={"Accept": "application/json"}
        )
        assert base64.b64decode(answer.json()) == _wav(0.01)
        answer = await http.post("/v1/predict/beep", json={"items": [0.01]})
        assert base64.b64decode(answer.json()["results"][0]) == _wav(0.01)
        answer = await http.post("/v1/predict/page", json="hi")
        assert (answer.headers["content-type"], answer.text) == (
            "text/html; charset=utf-8",
            "<p>hi</p>",
        )


# ---- streams


class Spell(headway.Model):  # type: ignore[type-arg]
    """README's, without a hint for what it gives."""

    def stream(self, items: list[str]):  # type: ignore[no-untyped-def]
        for step in range(max(map(len, items)) + 1):
            if any(item[step : step + 1] == "!" for item in items):
                raise ValueError("no shouting")
            yield [item[step] if step < len(item) else headway.END for item in items]


class Both(headway.Model[int, Any]):
    def predict(self, items: list[int]) -> list[int]:
        return items

    def stream(self, items: list[int]) -> Iterator[list[Any]]:
        for step in range(max(items) + 1):
            yield [{"step": step} if step < item else headway.END for item in items]


@pytest.mark.parametrize("stack", STACKS)
async def test_a_stream_is_answered_as_events(stack: str) -> None:
    events = {"Accept": "text/event-stream"}
    async with serving(stack, spell=Spell(), both=Both(), shout=Shout()) as http:
        answer = await http.post("/v1/predict/spell", json="abc")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text == 'data: "a"\n\ndata: "b"\n\ndata: "c"\n\n'
        answer = await http.post(
            "/v1/predict/spell", json="abc", headers={"Accept": "application/json"}
        )
        assert answer.json() == "abc"
        assert (await http.post("/v1/predict/both", json=2)).json() == 2
        answer = await http.post("/v1/predict/both", json=2, headers=events)
        assert answer.text == 'data: {"step":0}\n\ndata: {"step":1}\n\n'
        answer = await http.post("/v1/predict/shout", json="a", headers=events)
        assert answer.text == 'data: "A"\n\n'
        answer = await http.post("/v1/predict/spell", json="ab!")
        assert answer.text.startswith('data: "a"\n\ndata: "b"\n\nevent: error\ndata: {"error":')
        answer = await http.post("/v1/predict/spell", json="!")
        assert answer.status_code == 500
        answer = await http.post("/v1/predict/spell", json=3)
        assert (answer.status_code, "Expected `str`" in answer.text) == (400, True)


class Endless(headway.Model[int, int]):
    def __init__(self) -> None:
        self.is_over = threading.Event()

    def stream(self, items: list[int]) -> Iterator[list[int]]:
        try:
            while True:
                yield items
        finally:
            self.is_over.set()


async def test_a_reader_who_leaves_ends_its_stream() -> None:
    model = Endless()
    async with (
        serving(endless=model) as http,
        http.stream("POST", "/v1/predict/endless", json=7) as answer,
    ):
        async for line in answer.aiter_lines():
            assert line == "data: 7"
            break
        await answer.aclose()
        assert await asyncio.to_thread(model.is_over.wait, 20)


# ---- /predict, where clients of LitServe and of a FastAPI app of one model post


@pytest.mark.parametrize("stack", STACKS)
async def test_predict_runs_the_only_model_as_its_own_route_does(stack: str) -> None:
    async with serving(stack, answers=Answers()) as http:
        for body in ({"text": "a"}, {"txt": "a"}, {"items": [{"text": "a"}, {}]}, 3):
            plain, own = [
                await http.post(path, json=body) for path in ("/predict", "/v1/predict/answers")
            ]
            assert (plain.status_code, plain.json()) == (own.status_code, own.json())
        assert (await http.post("/predict", json={"text": "a"})).json()["text"] == "a"
        answer = await http.post("/predict?loud=1", json={"text": "a"})
        assert (answer.status_code, "'loud' is unknown" in answer.json()["error"]) == (400, True)
        document = (await http.get("/openapi.json")).json()
        described = document["paths"]["/predict"]["post"]["requestBody"]["content"]
        assert "answers.item" in str(described["application/json"]["schema"])
    async with serving(stack, shout=Shout()) as http:
        kind = {"Content-Type": "text/plain"}
        assert (await http.post("/predict", content=b"ab", headers=kind)).json() == "AB"


@pytest.mark.parametrize("stack", STACKS)
async def test_with_several_models_predict_names_their_routes(stack: str) -> None:
    async with serving(stack, answers=Answers(), prices=Prices()) as http:
        answer = await http.post("/predict", json={"text": "a"})
        told = "call a model by its name: /v1/predict/answers, /v1/predict/prices"
        assert (answer.status_code, told in answer.json()["error"]) == (400, True)


# ---- OpenAI's routes that are not served


@pytest.mark.parametrize("stack", STACKS)
async def test_a_route_of_another_server_that_is_not_served_names_what_is(stack: str) -> None:
    async with serving(stack, shout=Shout()) as http:
        for path, instead in [
            ("/v1/predict", "/v1/predict/{model}"),
            ("/v1/responses/resp_1/cancel", "no answers are kept"),
            ("/v1/files", "headway map"),
            ("/v1/moderations", "/predict"),
            ("/v1/audio/translations", "/v1/audio/transcriptions"),
            ("/v1/nowhere", "/docs"),
        ]:
            answer = await http.post(path, json={"model": "shout", "input": "a"})
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (404, "invalid_request_error")
            assert error["code"] == "not_found"
            assert instead in error["message"]
        for path, instead in [("/generate", "/v1/completions"), ("/healthz", "/health")]:
            told = (await http.post(path, json="a")).json()["error"]
            assert f"is not served here; use {instead}. " in told


@pytest.mark.parametrize("path", ["/v1/predict/model", "/embed", "/predict"])
async def test_what_is_json_is_not_called_anything_else(path: str) -> None:
    async with serving(model=Vectors()) as http:
        answer = await http.post(path, content=b'{"inputs": "a", "x": 1e400}')
        listed = await http.post("/embed", content=b"[1]")
    assert answer.status_code == listed.status_code == 400
    assert "x: the number is beyond every float" in answer.text
    assert "not JSON" not in answer.text + listed.text


class Vectors(headway.Model[str, Any]):
    def predict(
        self, items: list[str]
    ) -> Annotated[Any, headway.Tensor("embedding", "float32", (-1, 1))]:
        return numpy.ones((len(items), 1), numpy.float32)


class Nulls(headway.Model[list[None], str]):
    def predict(self, items: list[list[None]]) -> list[str]:
        return ["" for _ in items]


@pytest.mark.parametrize("value", [[[1, 2]], {"x": [["a"]]}])
async def test_where_the_example_is_null_no_other_shape_is_advised(value: Any) -> None:
    async with serving(model=Nulls()) as http:
        answer = await http.post("/v1/predict/model", json=value)
    assert answer.status_code == 400
    assert "sent as" not in answer.text
