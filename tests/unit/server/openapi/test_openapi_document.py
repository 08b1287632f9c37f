"""The document describes every model that can be described, whatever the others are."""

from typing import Any, NamedTuple, is_typeddict

import msgspec
import pytest

import headway
from headway.config import ModelConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.server.families.openai.embeddings import EmbeddingsRequest
from headway.server.families.openapi.document import document_of
from headway.server.families.openapi.schemas import schemas_of
from headway.server.run import routes_of
from headway.server.service.inference import Inference
from headway.server.service.routes import Route


class Place(NamedTuple):
    x: float
    y: float


class Fine(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return items


class Pairs(headway.Model[Any, Any]):
    def predict(self, items: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return items


class Any_(headway.Model[Any, Any]):
    inputs = (headway.Tensor("x", "object", (-1,)),)
    outputs = (headway.Tensor("y", "object", (-1,)),)

    def predict(self, items: list[tuple[int, str, Place]]) -> list[tuple[int, ...]]:
        return [item[:1] for item in items]


def served(model: headway.Model[Any, Any], name: str) -> Served:
    return Served(ModelConfig(name=name, target="tests:None", warm_up=False), model=model)


class Undescribable(Served):
    def json_schemas(self) -> tuple[dict[str, Any], dict[str, Any]]:
        raise RuntimeError("what a strange model")


def written(*models: Any) -> dict[str, Any]:
    document = document_of(models, version="1")
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return found


@pytest.mark.parametrize("model", [Pairs(), Any_()])
def test_tuples_are_described(model: Any) -> None:
    found = written(served(Fine(), "fine"), served(model, "odd"))
    assert found["paths"].keys() >= {"/v1/predict/fine", "/v1/predict/odd"}
    schema = found["components"]["schemas"]["odd.item"]
    assert schema["type"] == "array"
    body = found["paths"]["/v1/predict/odd"]["post"]["requestBody"]
    example = body["content"]["application/json"]["examples"]["typical"]["value"]
    assert len(example) == len(schema["prefixItems"])


def test_a_model_that_cannot_be_described_takes_nothing_from_the_others() -> None:
    config = ModelConfig(name="strange", target="tests:None", warm_up=False)
    found = written(served(Fine(), "fine"), Undescribable(config, model=Fine()))
    assert found["components"]["schemas"]["fine.item"] == {"type": "string"}
    assert found["components"]["schemas"]["strange.item"] == {}
    assert "/v1/predict/strange" in found["paths"]


# ---- the handlers' own types


def rows() -> list[Route]:
    return routes_of(Inference(Registry()))


def test_every_field_of_the_handlers_types_is_described() -> None:
    found = document_of([], rows(), version="1")["components"]["schemas"]
    kinds = [row.takes.kind for row in rows() if row.tag and row.takes is not None]
    kinds += [row.gives.kind for row in rows() if row.tag]
    named = [kind for kind in kinds if getattr(kind, "__name__", "") in found]
    assert len({kind.__name__ for kind in named}) > 40
    for kind in named:
        if is_typeddict(kind):
            fields = set(kind.__annotations__)
        else:
            fields = {each.encode_name for each in msgspec.structs.fields(kind)}
            fields |= set(getattr(kind, "NEUTRAL", ()))
        assert set(found[kind.__name__]["properties"]) == fields, kind


def test_a_field_that_a_handlers_type_gets_appears_by_itself() -> None:
    more = msgspec.defstruct(
        "EmbeddingsRequest", [("mood", str)], bases=(EmbeddingsRequest,), kw_only=True
    )
    before, after = (
        schemas_of([kind], null_is_absence=True)[1]["EmbeddingsRequest"]
        for kind in (EmbeddingsRequest, more)
    )
    assert set(after["properties"]) - set(before["properties"]) == {"mood"}
    assert set(after["required"]) - set(before["required"]) == {"mood"}
