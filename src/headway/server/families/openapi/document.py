"""What can be called, as an OpenAPI 3.1 document. Pure: models in, a dictionary out.

Each model has its own plain route, with the schemas of its own type hints; the routes of v2 and
OpenAI are described once, for all models.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headway.hosting.registry import ItemsMean, ServedModel
from headway.model import Tensor
from headway.server.auth.access import Access
from headway.server.bodies.neutral import schema_of
from headway.server.families.openai.adapters import LoadLoraRequest, UnloadLoraRequest
from headway.server.families.openai.answers import ChatCompletion, Completion
from headway.server.families.openai.audio import (
    Transcription,
    TranscriptionForm,
    VerboseTranscription,
)
from headway.server.families.openai.chat import ChatRequest
from headway.server.families.openai.completions import CompletionRequest
from headway.server.families.openai.embeddings import EmbeddingsAnswer, EmbeddingsRequest
from headway.server.families.openai.images import ImagesAnswer, ImagesRequest
from headway.server.families.openai.model_list import ModelEntries, ModelEntry
from headway.server.families.openai.rerank import RerankAnswer, RerankRequest
from headway.server.families.openai.tokens import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
)
from headway.server.families.openapi.answering import mark_unanswered
from headway.server.families.openapi.compatible import ANSWERED as COMPATIBLE_ANSWERS
from headway.server.families.openapi.compatible import TAKEN as COMPATIBLE
from headway.server.families.openapi.compatible import compatible
from headway.server.families.openapi.generating import generating
from headway.server.families.openapi.media import media
from headway.server.families.openapi.operating import operating
from headway.server.families.openapi.parts import (
    RUNNING,
    Operation,
    body_of,
    errors_of,
    json_of,
    operation_of,
    path_part,
)
from headway.server.families.v2 import bodies
from headway.server.families.v2.codec import WireRequest, WireResponse
from headway.server.families.v2.generating import GenerateRequest, GenerateResponse
from headway.server.service import kinds, schemas
from headway.server.service.dtypes import of_tensor
from headway.server.service.examples import example_of
from headway.server.service.routes import Errors, Route
from headway.server.service.schemas import Schema, array, closed, ref
from headway.signature.values import field_hints, is_file

_log = logging.getLogger(__name__)
_COMPONENT = "#/components/schemas/{name}"
_READING = ("404", "503")
_URGENCY = [{"$ref": f"#/components/parameters/{name}"} for name in schemas.PARAMETERS]


# The handlers' own types: a field that one of them gets is described without another word.
TAKEN: list[Any] = [  # by `decode_fields`, where null is absence
    *(EmbeddingsRequest, ImagesRequest, RerankRequest, ChatRequest, CompletionRequest),
    *(TokenizeRequest, DetokenizeRequest, LoadLoraRequest, UnloadLoraRequest, GenerateRequest),
    *(*COMPATIBLE, *bodies.TAKEN),
]
WIRE: list[Any] = [WireRequest, WireResponse, GenerateResponse, TranscriptionForm]
ANSWERED: list[Any] = [
    *(EmbeddingsAnswer, ImagesAnswer, RerankAnswer, Transcription, VerboseTranscription),
    *(ChatCompletion, Completion, Tokenized, Detokenized, ModelEntry, ModelEntries),
    *(*COMPATIBLE_ANSWERS, *bodies.ANSWERED),
]


def document_of(
    models: Iterable[ServedModel],
    rows: Iterable[Route] = (),
    *,
    version: str,
    has_keys: bool = False,
) -> dict[str, Any]:
    """Of these models, as they are now, on these routes. `has_keys`: every call needs one."""
    served = sorted(models, key=lambda model: model.name)
    components = schemas.COMPONENTS | components_of(WIRE + ANSWERED)
    taken = components_of(TAKEN)
    components |= {name: schemas.nulls_are_absence(each) for name, each in taken.items()}
    paths: dict[str, dict[str, Operation]] = {}
    for model in served:
        of_model, own = _predict_or_less(model)
        paths |= {path: {"post": operation} for path, operation in of_model.items()}
        components |= own
    paths |= _openai(served) | _rerank(served) | compatible(_named(served), _URGENCY) | _v2(served)
    if len(served) == 1 and not kinds.classifies_texts(served[0]):
        only = paths[f"/v1/predict/{served[0].name}"]["post"]
        paths["/predict"] = {"post": {**only, "operationId": "predict_only"}}
    mark_unanswered(paths, served)
    _tell_rows(paths, rows, has_keys=has_keys)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headway",
            "version": version,
            "description": "Models behind standard protocols; requests that meet share a batch.",
        },
        "tags": [
            {"name": "plain", "description": "One value as JSON in, its result out"},
            {"name": "openai", "description": "As OpenAI's clients speak"},
            {"name": "huggingface", "description": "As Hugging Face's and TEI's clients speak"},
            {"name": "cohere", "description": "As Cohere's client speaks"},
            {"name": "v1", "description": "KServe's and TensorFlow Serving's first protocol"},
            {"name": "v2", "description": "KServe v2 / Open Inference Protocol, as Triton has it"},
        ],
        "x-headway-models": [_shown(model) for model in served],
        "paths": paths,
        "components": {"schemas": components, "parameters": schemas.PARAMETERS},
    }
    if has_keys:
        document["components"]["securitySchemes"] = schemas.KEYS
        document["security"] = [{name: []} for name in schemas.KEYS]
    return document


def components_of(kinds: Iterable[Any]) -> dict[str, Schema]:
    """Of these types and those they are made of, by name."""
    kinds = list(kinds)
    found = msgspec.json.schema_components(kinds, ref_template=_COMPONENT)[1]
    for kind in kinds:
        for name, values in getattr(kind, "NEUTRAL", {}).items():
            found[kind.__name__]["properties"][name] = schema_of(values)
    for name, details in schemas.DETAILS.items():
        if name in found:
            found[name]["properties"] |= details
    for name, description in schemas.OTHER_FIELDS.items():
        if name in found:
            found[name]["additionalProperties"] = {"description": description}
    return found


def _shown(model: ServedModel) -> dict[str, Any]:
    """What /docs shows first: its name, and where it is called."""
    operation = f"predict_{model.name}"
    if kinds.generates(model):
        operation = "chat"
    return {"name": model.name, "version": model.version, "operation": operation}


def _tell_rows(
    paths: dict[str, dict[str, Operation]], rows: Iterable[Route], *, has_keys: bool
) -> None:
    """What a route's row says: how its errors are spelled and, with keys, whether it needs one.
    A model's own plain route has the table's usual: it needs one, and errors are texts."""
    known = {(row.method, row.template): row for row in rows}
    for path, operations in paths.items():
        for method, operation in operations.items():
            row = known.get((method.upper(), path))
            is_open = row is not None and row.access is Access.OPEN
            is_object = row is not None and row.errors is Errors.OPENAI
            failures = [status for status in operation["responses"] if status >= "400"]
            if has_keys and is_open:
                operation["security"] = []
            elif has_keys:
                failures += ["401", "403"]
            operation["responses"] = {
                **operation["responses"],
                **errors_of(failures, shape="OpenAIError" if is_object else "Error"),
            }


# ---- the plain route


def _predict_or_less(model: ServedModel) -> tuple[dict[str, Operation], dict[str, Schema]]:
    """One model that cannot be described takes nothing from the others: it takes and gives
    anything."""
    try:
        described = _predict(model, *_schemas_of(model))
        msgspec.json.encode(described)  # a default of some kind may have no JSON form
        return described
    except Exception:  # noqa: BLE001  the hints are the model's
        _log.warning("%s cannot be described", model.name, exc_info=True)
        return _predict(model, {}, {})


def _predict(
    model: ServedModel, takes: Schema, gives: Schema
) -> tuple[dict[str, Operation], dict[str, Schema]]:
    components: dict[str, Schema] = {}
    item, result = f"{model.name}.item", f"{model.name}.result"
    components[item] = _hoisted(takes, model.name, components)
    components[result] = _hoisted(_as_written(gives), model.name, components)
    batch = closed(items=schemas.ITEMS)
    results = closed(results=array({"anyOf": [ref(result), ref("Error")]}))
    has_short_form = _answers(model) and model.items_mean == "several"
    taken = {"anyOf": [ref(item), batch]} if has_short_form else ref(item)
    given = {"anyOf": [ref(result), results]} if has_short_form else ref(result)
    one = operation_of(
        *("plain", f"predict_{model.name}", f"One value through {model.name}"),
        *(_answered(model, gives, given), RUNNING),
        description=_BODY[model.items_mean] if _answers(model) else "The body is one item.",
        parameters=_URGENCY,
        body=body_of(taken, example=example_of(takes)),
    )
    one["requestBody"]["content"] |= _uploads(model)
    operations = {f"/v1/predict/{model.name}": one}
    if _answers(model):
        operations[f"/v1/predict/{model.name}/batch"] = operation_of(
            *("plain", f"batch_{model.name}", f"Several values through {model.name}"),
            *(json_of("one for each item", results), RUNNING),
            description="Each is answered by a result or its own error, in their order.",
            parameters=_URGENCY,
            body=body_of(batch, example={"items": [example_of(takes)]}),
        )
    return operations, components


_BODY: dict[ItemsMean, str] = {
    "one": "The body is one item.",
    "several": "The body is one item; or several as `items`, each answered by a result or its own "
    "error.",
    "unclear": "The body is one item. The model has no type hint, so an object whose only field is "
    "`items` is refused: several items have a route of their own, `/batch`.",
}


def _answered(model: ServedModel, gives: Schema, schema: Schema) -> dict[str, Any]:
    """A result as JSON, as a file where it is one, or as events where the model streams."""
    answer = json_of("the result", schema)
    content = answer["content"]
    if model.streams:
        # Without a schema: what one would describe, the text or each event, tools do not agree on.
        content["text/event-stream"] = {}
    if not gives or "contentEncoding" in gives or model.media_type:
        content["*/*"] = {"schema": {}}
    return answer


def _uploads(model: ServedModel) -> dict[str, Any]:
    """What else the body may be, where the model takes a file."""
    signature = model.signature
    hint = None if signature is None else signature.input.hint
    files = [name for name, each in field_hints(hint).items() if is_file(each)]
    if not (files or is_file(hint)):
        return {}
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    form = {"type": "object", "properties": dict.fromkeys(files or ["file"], file)}
    return {"multipart/form-data": {"schema": form}, "application/octet-stream": {}}


def _schemas_of(model: ServedModel) -> tuple[Schema, Schema]:
    takes, gives = model.json_schemas()
    if model.signature is None and len(model.inputs) == 1:
        # A tensor model's only input may be named or not.
        takes = {"anyOf": [takes, closed(**{model.inputs[0].name: takes})]}
    return takes, gives


def _answers(model: ServedModel) -> bool:
    """Whether it gives single answers: some models only stream."""
    return not model.only_streams


def _hoisted(schema: Schema, owner: str, components: dict[str, Schema]) -> Schema:
    """Definitions move to the components, where every reference of the document looks."""
    schema = dict(schema)
    for name, definition in schema.pop("$defs", {}).items():
        components[f"{owner}.{name}"] = _hoisted(definition, owner, components)
    return {key: _moved(value, owner, components) for key, value in schema.items()}


def _moved(value: Any, owner: str, components: dict[str, Schema]) -> Any:
    if isinstance(value, dict):
        return _hoisted(value, owner, components)
    if isinstance(value, list):
        return [_moved(each, owner, components) for each in value]
    if isinstance(value, str) and value.startswith("#/$defs/"):
        return _COMPONENT.format(name=f"{owner}.{value.removeprefix('#/$defs/')}")
    return value


def _as_written(schema: Any) -> Any:
    """JSON has no NaN and no infinity: where a model gives one, the answer has null."""
    if isinstance(schema, list):
        return [_as_written(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return schemas.nullable({"type": "number"})
    return {key: _as_written(value) for key, value in schema.items()}


# ---- OpenAI


def _openai(served: Sequence[ServedModel]) -> dict[str, dict[str, Operation]]:
    example = {"model": _embedder(served), "input": ["hello", "world"]}
    listed = operation_of(
        *("openai", "list_models", "The models that are served"),
        json_of("all of them", ref("ModelEntries")),
    )
    one = operation_of(
        *("openai", "get_model", "One model", json_of("it is there", ref("ModelEntry")), ("404",)),
        parameters=[_named(served)],
    )
    embed = operation_of(
        *("openai", "embed", "Texts, or lists of token ids, as vectors"),
        *(json_of("in the order given", ref("EmbeddingsAnswer")), RUNNING),
        parameters=_URGENCY,
        body=body_of(ref("EmbeddingsRequest"), example=example),
    )
    return {
        "/v1/models": {"get": listed},
        "/v1/models/{model}": {"get": one},
        "/v1/embeddings": {"post": embed},
        **media(_URGENCY),
        **generating(served, _URGENCY),
    }


def _rerank(served: Sequence[ServedModel]) -> dict[str, dict[str, Operation]]:
    names = [each.name for each in served if any(i.name == "query" for i in each.inputs)]
    example = {
        "model": next(iter(names), "name of a model"),
        "query": "what is the capital of France?",
        "documents": ["Paris is the capital of France.", "Berlin is a city."],
        "top_n": 1,
    }
    return {
        f"/{version}/rerank": {
            "post": operation_of(
                *("openai", name, "Documents by how well they fit a query, as Cohere has it"),
                *(json_of("best first", ref("RerankAnswer")), RUNNING),
                parameters=_URGENCY,
                body=body_of(ref("RerankRequest"), example=example),
            )
        }
        for version, name in (("v1", "rerank"), ("v2", "rerank_v2"))
    }


def _embedder(served: Sequence[ServedModel]) -> str:
    names = [each.name for each in served if [out.dtype for out in each.outputs] == ["float32"]]
    return next(iter(names), "name of a model")


# ---- v2


def _v2(served: Sequence[ServedModel]) -> dict[str, dict[str, Operation]]:
    named = [_named(served)]
    reads = {
        "/v2": ("server_metadata", "What this server is and can do", "ServerMetadata"),
        "/v2/health/live": ("live", "Whether it lives", "Live"),
        "/v2/health/ready": ("ready", "Whether every model is ready", "Ready"),
        "/v2/models": ("models", "Names of the models", "ModelNames"),
        "/v2/models/stats": ("all_statistics", "Figures of every model", "AllStatistics"),
        "/v2/models/{model}": ("model_metadata", "Its inputs and outputs", "ModelMetadata"),
        "/v2/models/{model}/ready": ("model_ready", "Whether it is ready", "ModelReady"),
        "/v2/models/{model}/config": (
            "model_config",
            "As Triton configures it",
            "ModelConfiguration",
        ),
        "/v2/models/{model}/stats": ("statistics", "Figures of one model", "AllStatistics"),
    }
    paths: dict[str, dict[str, Operation]] = {
        path: {
            "get": operation_of(
                *("v2", name, summary, json_of("as it is now", ref(schema)), _READING),
                parameters=named if "{model}" in path else [],
            )
        }
        for path, (name, summary, schema) in reads.items()
    }
    generated = _running("generate", "Text, or any value, through a model", "GenerateRequest")
    streamed = _running("generate_stream", "The same, as server-sent events", "GenerateRequest")
    generated["responses"]["200"] = json_of("the whole answer", ref("GenerateResponse"))
    streamed["responses"]["200"] = {
        "description": "an event `data: {…}` for each part; a later error is an event too",
        "content": {"text/event-stream": {}},
    }
    infer = _running("infer", "Named tensors through a model, rows first", "WireRequest")
    infer["description"] = (
        "Tensors as JSON; with `Inference-Header-Content-Length`, JSON followed by binary tensors."
    )
    infer["responses"]["200"] = json_of("its outputs", ref("WireResponse"))
    infer["requestBody"]["content"]["application/json"]["examples"] = _infer_examples(served)
    for path, operation in (
        ("infer", infer),
        ("generate", generated),
        ("generate_stream", streamed),
    ):
        operation["parameters"] = [*named, *_URGENCY]
        paths[f"/v2/models/{{model}}/{path}"] = {"post": operation}
    paths |= _of_versions(paths, served)
    paths |= operating(named[0])
    return paths


def _of_versions(
    paths: dict[str, dict[str, Operation]], served: Sequence[ServedModel]
) -> dict[str, dict[str, Operation]]:
    """The same again for one version: everything that a model has."""
    versions = sorted({model.version for model in served})
    version = path_part("version", "one that is served", versions)
    found = {}
    for path, operations in paths.items():
        of_model = path.removeprefix("/v2/models/{model}")
        if of_model != path:
            found[f"/v2/models/{{model}}/versions/{{version}}{of_model}"] = {
                method: {
                    **operation,
                    "operationId": f"version_{operation['operationId']}",
                    "summary": f"{operation['summary']}, of one version",
                    "parameters": [*operation["parameters"], version],
                }
                for method, operation in operations.items()
            }
    return found


def _named(served: Sequence[ServedModel]) -> dict[str, Any]:
    return path_part("model", "its name", [model.name for model in served])


def _running(name: str, summary: str, schema: str) -> Operation:
    body = body_of(ref(schema), example={"text_input": "hello"})
    return operation_of("v2", name, summary, None, RUNNING, body=body)


def _infer_examples(served: Sequence[ServedModel]) -> dict[str, Any]:
    return {
        model.name: {"value": {"inputs": [_sample(each) for each in model.inputs]}}
        for model in served
        if _answers(model) and all(of_tensor(each).is_json for each in model.inputs)
    }


def _sample(tensor: Tensor) -> dict[str, Any]:
    datatype = of_tensor(tensor)
    shape = [1, *(1 if axis == -1 else axis for axis in tensor.shape[1:])]
    text = schemas.IMAGE if tensor.name == "image" else "hello"
    value: Any = {"bytes": text, "bool": True}.get(datatype.kind, 1)
    for axis in reversed(shape):
        value = [value] * axis
    return {"name": tensor.name, "shape": shape, "datatype": datatype.name, "data": value}
