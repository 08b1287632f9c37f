"""Both ways of the plain route give the same; the direct one is taken where it can be."""

from typing import Any

import pytest
from served_models import Arithmetic, Double, Pairs, Root, Upper
from small_server import serving
from test_any_json import Answers, Beep, Page, Prices, Spell, Sums, Untyped

from headway import Model
from headway.config import ModelConfig
from headway.hosting.hosted import Served
from headway.server.families.plain.direct import plain_codec

pytestmark = pytest.mark.real_time
GENERAL = {"Headway-Priority": "normal"}  # an option, which the direct path does not know
ROW = [float(each) for each in range(16)]
BODIES: dict[str, list[Any]] = {
    "upper": ["hello", 3, {"items": ["a", 3]}, {"items": 3}, None],
    "root": [4, 4.0, -1, "4", {"items": [4]}],
    "double": [ROW, {"x": ROW}, ROW[1:], ["a"], {"y": ROW}, [1e39, *ROW[1:]], [True, *ROW[1:]]],
    "arithmetic": [{"a": [1, 2], "b": [3, 4]}, {"a": [1, 2]}, [1, 2], {"a": [1.5, 2], "b": [3, 4]}],
    "pairs": [{"query": "a", "document": "b"}, {"query": "a"}, {"query": "a", "x": 1}, []],
    "answers": [{"text": "a"}, {"text": 3}, {}, {"text": "a", "z": 1}, {"items": [{"text": "a"}]}],
    "prices": [{"name": "a"}, {"name": "a", "price": 0}, {"items": [{"name": "a"}]}, 3],
    "sums": [{"items": [1, 2]}, {"items": ["a"]}],
}
MODELS = {
    "upper": Upper(),
    "root": Root(),
    "double": Double(),
    "arithmetic": Arithmetic(),
    "pairs": Pairs(),
    "answers": Answers(),
    "prices": Prices(),
    "sums": Sums(),
}


async def test_both_ways_give_the_same() -> None:
    async with serving(**MODELS) as http:
        for name, bodies in BODIES.items():
            for body in bodies:
                url = f"/v1/predict/{name}"
                direct = await http.post(url, json=body)
                general = await http.post(url, json=body, headers=GENERAL)
                found = direct.status_code, direct.content, direct.headers["content-type"]
                assert found == (
                    general.status_code,
                    general.content,
                    general.headers["content-type"],
                ), (name, body)


@pytest.mark.parametrize("name", MODELS)
async def test_a_simple_model_goes_the_direct_way(name: str) -> None:
    config = ModelConfig(name=name, target="x:Y", warm_up=False)
    assert plain_codec(Served(config, model=MODELS[name])) is not None


async def test_whoever_needs_more_does_not() -> None:
    config = ModelConfig(name="it", target="x:Y", warm_up=False)
    for model in (Beep(), Page(), Untyped(), Spell()):
        assert plain_codec(Served(config, model=model)) is None
    timed = ModelConfig(name="it", target="x:Y", warm_up=False, timeout_ms=100)
    assert plain_codec(Served(timed, model=Upper())) is None


class Length(Model[str, Any]):
    """Promises texts, and returns their lengths."""

    def predict(self, items: list[str]) -> list[str]:
        return [len(item) for item in items]  # type: ignore[misc]


async def test_what_is_no_text_is_no_answer_where_one_was_promised() -> None:
    tensor = {"name": "input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    async with serving(length=Length()) as http:
        over_v2 = await http.post("/v2/models/length/infer", json={"inputs": [tensor]})
        assert over_v2.status_code == 500
        for headers in ({}, GENERAL):
            answer = await http.post("/v1/predict/length", json="a", headers=headers)
            assert answer.status_code == over_v2.status_code
            assert "output 'output' is not a text but of type int" in answer.text
        several = await http.post("/v1/predict/length", json={"items": ["a"]})
        assert "is not a text" in several.json()["results"][0]["error"]
