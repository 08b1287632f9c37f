"""Which task a served model does, read from its inputs and outputs: so that any model of that
shape, ready-made or yours, answers the routes of the task."""

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from headway.errors import InvalidInput
from headway.hosting.registry import ServedModel

# As Hugging Face names them.
Task: TypeAlias = Literal[
    "feature-extraction",
    "text-ranking",
    "text-classification",
    "image-classification",
    "automatic-speech-recognition",
    "text-to-image",
    "text-generation",
]


def embeds(model: ServedModel) -> bool:
    """A text in, a vector out: of floats, as hints have it (`list[float]` is float64), too."""
    takes = [(each.dtype, each.content_type) for each in model.inputs]
    gives = [(each.dtype[:5], len(each.shape)) for each in model.outputs]
    return takes == [("object", "")] and gives == [("float", 2)]


def ranks(model: ServedModel) -> bool:
    """A query and a document in, a number out."""
    takes = {each.name: each.dtype for each in model.inputs}
    gives = [(each.dtype[:5], len(each.shape)) for each in model.outputs]
    return takes == {"query": "object", "document": "object"} and gives == [("float", 1)]


def classifies_texts(model: ServedModel) -> bool:
    return _gives_classes(model) and [each.name for each in model.inputs] == ["text"]


def classifies_images(model: ServedModel) -> bool:
    """Image files in, classes out. A model that takes pixels is not meant."""
    takes = [(each.name, each.dtype) for each in model.inputs]
    return _gives_classes(model) and takes == [("image", "object")]


def transcribes(model: ServedModel) -> bool:
    takes = [each.name for each in model.inputs] == ["audio"]
    return takes and [(each.name, each.dtype) for each in model.outputs] == [("text", "object")]


def draws(model: ServedModel) -> bool:
    takes = [each.name for each in model.inputs] == ["prompt"]
    return takes and [(each.name, each.dtype) for each in model.outputs] == [("image", "object")]


def generates(model: ServedModel) -> bool:
    return model.language is not None


def _gives_classes(model: ServedModel) -> bool:
    return [each.name for each in model.outputs] == ["labels", "scores"]


_KINDS: dict[Task, tuple[Callable[[ServedModel], bool], str]] = {
    "text-generation": (generates, "generate text"),
    "feature-extraction": (embeds, "make embeddings"),
    "text-ranking": (ranks, "rank documents"),
    "text-classification": (classifies_texts, "classify texts"),
    "image-classification": (classifies_images, "classify images"),
    "automatic-speech-recognition": (transcribes, "transcribe speech"),
    "text-to-image": (draws, "draw images"),
}


def task_of(model: ServedModel) -> Task | None:
    return next((task for task in _KINDS if does(model, task)), None)


def does(model: ServedModel, task: Task) -> bool:
    return _KINDS[task][0](model)


def check_does(model: ServedModel, task: Task) -> None:
    if not does(model, task):
        raise InvalidInput(
            f"model {model.name!r} does not {_KINDS[task][1]}; POST /v1/predict/{model.name} "
            "runs it"
        )


def only_one(models: Iterable[ServedModel], tasks: Iterable[Task]) -> ServedModel:
    """The model that a request without a name must mean. Raises InvalidInput."""
    wanted, served = set(tasks), list(models)
    names: dict[str, ServedModel] = {}
    for each in served:
        if task_of(each) in wanted:
            names.setdefault(each.name, each)
    if len(names) == 1:
        return next(iter(names.values()))
    if not names:
        done = " or ".join(_KINDS[task][1] for task in sorted(wanted))
        routes = sorted({f"/v1/predict/{each.name}" for each in served})
        instead = f"; call a model by its name: {', '.join(routes)}" if routes else ""
        raise InvalidInput(f"no model that is served here can {done}{instead}")
    raise InvalidInput(
        f"{len(names)} models could answer this ({', '.join(sorted(names))}); "
        "name one in the path: /models/NAME"
    )
