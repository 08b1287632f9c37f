"""The routes for clients of other servers, described: Hugging Face's, Cohere's, KServe's first."""

from typing import Any

from headway.server.families.cohere import CohereEmbedAnswer, CohereEmbedRequest
from headway.server.families.huggingface import (
    Class,
    ClassifyRequest,
    EmbedRequest,
    ModelInfo,
    RankedText,
    RankTextsRequest,
    SimilarityRequest,
)
from headway.server.families.instances import InstancesRequest, Predictions
from headway.server.families.openapi.parts import (
    RUNNING,
    Operation,
    body_of,
    json_of,
    operation_of,
    path_part,
)
from headway.server.service.schemas import Schema, array, record, ref

TAKEN: list[Any] = [
    *(EmbedRequest, SimilarityRequest, ClassifyRequest, RankTextsRequest),
    *(CohereEmbedRequest, InstancesRequest),
]
ANSWERED: list[Any] = [Class, RankedText, ModelInfo, CohereEmbedAnswer, Predictions]
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_ANY = "whatever the model's task gives"
_TASKS: dict[str, tuple[str, str, Schema, Any]] = {
    "embed": (
        "Texts as vectors",
        "EmbedRequest",
        array(array(_NUMBER)),
        {"inputs": ["hello", "world"]},
    ),
    "similarity": (
        "How close sentences are to one",
        "SimilarityRequest",
        array(_NUMBER),
        {"inputs": {"source_sentence": "hello", "sentences": ["hi", "goodbye"]}},
    ),
    "rerank": (
        "Texts by how well they fit a query, best first",
        "RankTextsRequest",
        array(ref("RankedText")),
        {"query": "a city", "texts": ["Paris", "a banana"]},
    ),
    "predict": (
        "Texts as classes, likeliest first",
        "ClassifyRequest",
        {"type": "array", "items": {"anyOf": [ref("Class"), array(ref("Class"))]}},
        {"inputs": "hello"},
    ),
}


def compatible(named: dict[str, Any], urgency: list[Any]) -> dict[str, dict[str, Operation]]:
    """`named`: the part of a path that is a model's name."""
    paths: dict[str, dict[str, Operation]] = {}
    for under, word, parameters in (("", "", []), ("/models/{model}", "model_", [named])):
        paths |= _hub(under, word, parameters, urgency)
    root = operation_of(
        *("huggingface", "root", "What there is; a browser is led to /docs"),
        json_of("to a program", {"type": "object"}),
    )
    root["responses"]["307"] = {"description": "to a browser"}
    paths["/"]["get"] = root
    paths |= _words_of_others()
    task = path_part("task", "as Hugging Face names it")
    paths["/models/{model}/pipeline/{task}"] = {
        "post": _asking("pipeline", "One task of a model", [named, task, *urgency])
    }
    embedded = json_of("in the order given", ref("CohereEmbedAnswer"))
    example = {"model": "name of a model", "texts": ["hello"], "input_type": "search_query"}
    for version in ("v1", "v2"):
        embed = operation_of(
            *("cohere", f"embed_{version}", "Texts as vectors, as Cohere has it"),
            *(embedded, RUNNING),
            parameters=urgency,
            body=body_of(ref("CohereEmbedRequest"), example=example),
        )
        paths[f"/{version}/embed"] = {"post": embed}
    predictions = json_of("one for each", ref("Predictions"))
    predict = operation_of(
        *("v1", "predict_instances", "Values through a model, in order", predictions, RUNNING),
        parameters=[named, *urgency],
        body=body_of(ref("InstancesRequest"), example={"instances": ["hello"]}),
    )
    paths["/v1/models/{model}:predict"] = {"post": predict}
    return paths


def _hub(
    under: str, word: str, parameters: list[Any], urgency: list[Any]
) -> dict[str, dict[str, Operation]]:
    def operation(name: str, summary: str, answer: Any, **more: Any) -> Operation:
        return operation_of("huggingface", f"{word}{name}", summary, answer, RUNNING, **more)

    paths: dict[str, dict[str, Operation]] = {
        f"{under}/{name}": {
            "get": operation(name, summary, json_of("as it is now", gives), parameters=parameters)
        }
        for name, summary, gives in (
            ("health", "Whether it is ready", {"type": "object"}),
            ("info", "What it is", ref("ModelInfo")),
        )
    }
    paths[under or "/"] = {
        "post": _asking(f"{word}ask", "`inputs`, or a file, through a model", parameters + urgency)
    }
    for name, (summary, kind, gives, example) in _TASKS.items():
        answer, body = json_of("in TEI's shape", gives), body_of(ref(kind), example=example)
        asked = operation(
            f"tei_{name}", summary, answer, parameters=parameters + urgency, body=body
        )
        paths[f"{under}/{name}"] = {"post": asked}
    return paths


def _words_of_others() -> dict[str, dict[str, Operation]]:
    """SageMaker's name for health, and vLLM's for its version."""
    ready = json_of("as it is now", {"type": "object"})
    version = json_of("this server's", record({"version": _TEXT}))
    return {
        "/ping": {
            method: operation_of(
                "huggingface", f"{method}_ping", "Whether it is ready", ready, RUNNING
            )
            for method in ("get", "post")
        },
        "/version": {
            "get": operation_of("huggingface", "version", "The server's version", version, RUNNING)
        },
    }


def _asking(name: str, summary: str, parameters: list[Any]) -> Operation:
    body = body_of(record({"inputs": {}}, {"parameters": {}}), example={"inputs": "hello"})
    body["content"]["application/octet-stream"] = {}
    answer = json_of(_ANY, {})
    answer["content"]["image/png"] = {}
    return operation_of(
        "huggingface", name, summary, answer, RUNNING, parameters=parameters, body=body
    )
