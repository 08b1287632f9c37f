"""Hugging Face's shapes: an unmodified `huggingface_hub.InferenceClient` works, and so do
clients of text-embeddings-inference (TEI).

Each model has a URL of its own, `/models/NAME`, to which `{"inputs": …}` or a file is posted: what
becomes of it is the model's task. The routes without a name mean the only model that does the task.
"""

from typing import Any, NotRequired, TypedDict

import msgspec

from headway.errors import InvalidInput, NotReady
from headway.hosting.registry import ServedModel
from headway.server.auth.access import Access
from headway.server.bodies.json_body import decode_fields
from headway.server.families.huggingface.tasks import (
    TASKS,
    Class,
    ClassifyRequest,
    EmbedRequest,
    ModelInfo,
    RankedText,
    RankTextsRequest,
    SimilarityRequest,
    answered,
    classes_of,
    converted,
    decoded,
    embed,
    fields_in,
    scores_of,
    similarity,
    truncating,
    unpacked,
)
from headway.server.families.openai.rerank import Reranking, RerankRequest
from headway.server.families.plain.handlers import Plain
from headway.server.service.inference import Inference
from headway.server.service.model_tasks import Task, check_does, only_one, task_of
from headway.server.service.options import ask_of, find_or_wake
from headway.server.service.routes import Gives, Route, Takes, no_query
from headway.server.service.vectors import MAX_INPUTS
from headway.wire.messages import Answer, Request, Response


class AnyInputs(TypedDict):
    inputs: Any
    parameters: NotRequired[Any]


_SENTENCES = {"inputs": {"source_sentence": "hello", "sentences": ["hi", "goodbye"]}}
_ANYTHING = Takes(
    AnyInputs,
    {"inputs": "hello"},
    is_decoded=False,
    null_is_absence=False,
    others=("application/octet-stream",),
)
_ANSWER = Gives(Any, ("image/png",))  # its type depends on the model's task


class HuggingFace:
    """The routes and their handlers, over one service."""

    def __init__(self, inference: Inference, plain: Plain) -> None:
        self._inference = inference
        self._plain = plain
        self._reranking = Reranking(inference)

    def routes(self) -> list[Route]:
        rows = [
            Route(
                *("POST", "/models/{model}/pipeline/{task}", self.pipeline, Access.INFER),
                tag="huggingface",
                summary="A file, or `inputs`, through the task of a model",
                takes=_ANYTHING,
                gives=_ANSWER,
            )
        ]
        for under in ("", "/models/{model}"):
            rows += self._rows_under(under)
        # SageMaker's name for health, and vLLM's for its version.
        health = next(row for row in rows if row.template == "/health")
        rows += [health._replace(method=method, template="/ping") for method in ("GET", "POST")]
        return [
            *rows,
            Route(
                *("GET", "/version", self.version, Access.READ),
                tag="huggingface",
                summary="The server's version",
                gives=Gives(dict),
            ),
        ]

    def _rows_under(self, under: str) -> list[Route]:
        what = "the model" if under else "the server"
        tag: Any = {"tag": "huggingface"}
        health = Route("GET", f"{under}/health", self.health, Access.OPEN, **tag)
        info = Route("GET", f"{under}/info", self.info, Access.READ, **tag)
        ask = Route("POST", under or "/", self.ask, Access.INFER, **tag)
        return [
            health._replace(summary=f"Whether {what} is ready", gives=Gives(dict)),
            info._replace(summary="The model's name, task and batch sizes", gives=Gives(ModelInfo)),
            ask._replace(
                summary="`inputs`, or a file, through a model", takes=_ANYTHING, gives=_ANSWER
            ),
            *(
                Route(
                    *("POST", f"{under}/{name}", handler, Access.INFER),
                    summary=summary,
                    takes=Takes(kind, example, is_decoded=False),
                    gives=Gives(answer),
                    **tag,
                )
                for name, handler, summary, kind, example, answer in (
                    (
                        *("embed", self.embed, "Texts as vectors", EmbedRequest),
                        *({"inputs": ["hello", "world"]}, list[list[float]]),
                    ),
                    (
                        *("similarity", self.similarity, "How similar texts are to a sentence"),
                        *(SimilarityRequest, _SENTENCES, list[float]),
                    ),
                    (
                        *("rerank", self.rerank, "Texts by how well they fit a query, best first"),
                        *(RankTextsRequest, {"query": "a city", "texts": ["Paris", "a banana"]}),
                        list[RankedText],
                    ),
                    (
                        *("predict", self.predict, "Classes of texts, likeliest first"),
                        *(ClassifyRequest, {"inputs": "hello"}, list[Class | list[Class]]),
                    ),
                )
            ),
        ]

    async def ask(self, request: Request, model: str = "") -> Response:
        """Run the model's own task."""
        served = await self._find(request, model, *TASKS)
        task = task_of(served)
        if task is None or task not in TASKS:
            raise InvalidInput(
                f"model {served.name!r} does none of Hugging Face's tasks that are served here: "
                f"{', '.join(TASKS)}"
            )
        return await TASKS[task](request, served)

    async def pipeline(self, request: Request, model: str, task: str) -> Response:
        served = await self._find(request, model)
        does = task_of(served)
        if task == "sentence-similarity":
            return await similarity(request, served)
        if does is None or task != does or does not in TASKS:
            raise InvalidInput(f"model {served.name!r} does not do {task!r}")
        return await TASKS[does](request, served)

    async def embed(self, request: Request, model: str = "") -> Response:
        return await embed(request, await self._find(request, model, "feature-extraction"))

    async def similarity(self, request: Request, model: str = "") -> Response:
        served = await self._find(request, model, "feature-extraction", "text-ranking")
        return await similarity(request, served)

    async def predict(self, request: Request, model: str = "") -> Answer:
        """TEI's: one text has one list of classes, several have one each. LitServe's clients post
        here, too: if the server's only model does not classify texts, the request is answered as
        on `/v1/predict/NAME`."""
        names = self._inference.models.names(request.caller)
        if not model and len(names) == 1:
            only = await find_or_wake(self._inference, request, names[0])
            if task_of(only) != "text-classification":
                return await self._plain.predict(request, names[0])
        served = await self._find(request, model, "text-classification")
        check_does(served, "text-classification")
        asked = await decoded(request, ClassifyRequest)
        is_one = isinstance(asked.inputs, str)
        texts = [asked.inputs] if is_one else [unpacked(each) for each in asked.inputs]
        classes, ask = await classes_of(request, served, asked, texts)
        return await answered(classes[0] if is_one else classes, ask)

    async def rerank(self, request: Request, model: str = "") -> Response:
        """TEI's: best first, each with its index. One with a `model` or `documents` is Cohere's,
        which vLLM, Jina and Infinity have here."""
        body = await fields_in(request)
        if not model and ("documents" in body or "model" in body):
            return await self._reranking.rerank(
                request, await decode_fields(request, RerankRequest)
            )
        served = await self._find(request, model, "text-ranking")
        check_does(served, "text-ranking")
        asked = converted(body, RankTextsRequest)
        ask = ask_of(truncating(asked, served), request)
        scores = await scores_of(served, asked.query, asked.texts, ask, field="texts")
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        ranked: list[RankedText] = [{"index": index, "score": scores[index]} for index in order]
        if asked.return_text:
            for each in ranked:
                each["text"] = asked.texts[each["index"]]
        return await answered(ranked, ask)

    async def info(self, request: Request, model: str = "") -> Response:
        served = await self._find(request, model, *TASKS)
        found: ModelInfo = {
            "model_id": served.name,
            "model_pipeline_tag": task_of(served),
            "max_client_batch_size": MAX_INPUTS,
            "max_batch_requests": served.max_batch_size,
            "version": self._inference.version,
        }
        return Response(msgspec.json.encode(found))

    async def health(self, request: Request, model: str = "") -> Response:
        """Answers as `/v2/health/ready` does, or as a model's `/ready` does."""
        models = self._inference.models
        if model:
            models.find_ready(request.caller, model)
        elif not models.registry.is_ready:
            raise NotReady(models.registry.unready, retry_after_s=1.0)
        return Response(b'{"status":"ok"}')

    async def version(self, request: Request) -> Response:
        """The server's version, in vLLM's format."""
        return Response(msgspec.json.encode({"version": self._inference.version}))

    async def _find(self, request: Request, name: str, *tasks: Task) -> ServedModel:
        no_query(request)
        if name:
            return await find_or_wake(self._inference, request, name)
        return only_one(self._inference.models.answering(request.caller), tasks)
