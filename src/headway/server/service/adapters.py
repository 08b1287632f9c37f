"""Adapters that come and go while their model is served: what the routes for it have in common."""

from typing import Any

from headway.errors import ConfigError, InvalidInput, UnknownModel
from headway.hosting.registry import ServedModel
from headway.runtime.generation.adapter_book import AdapterBook
from headway.server.auth.keys import Caller
from headway.server.service.models import VisibleModels


def model_of(models: VisibleModels, caller: Caller | None, name: str) -> ServedModel:
    """The language model of this name, or the only one there is. Raises UnknownModel."""
    if name:
        return models.get(caller, name)
    found = [each for each in models.answering(caller) if hasattr(each, "adapted")]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownModel("no language model is served")
    names = ", ".join(each.name for each in found)
    raise InvalidInput(f"model: several models take adapters ({names}); name one of them")


def book_of(model: ServedModel) -> AdapterBook:
    book: AdapterBook | None = getattr(model, "adapters", None)
    if book is None:
        raise InvalidInput(f"model: {model.name!r} has no adapters")
    return book


async def load_adapter(
    models: VisibleModels, model: ServedModel, name: str, folder: str, *, replaces: bool
) -> None:
    """Answers when requests may name it. Raises InvalidInput for a folder that cannot be used."""
    parent = models.registry.adapters().get(name, model.name)
    if name in models.registry.names():
        raise InvalidInput(f"adapter: the name {name!r} is taken by a model")
    if parent != model.name:
        raise InvalidInput(f"adapter: the name {name!r} is taken by an adapter of model {parent!r}")
    book = book_of(model)
    try:
        await book.load(name, folder, replaces=replaces)
    except ConfigError as error:
        raise InvalidInput(f"adapter: {error}") from error


def lines_of(model: ServedModel) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "folder": each.folder, "model": model.name}
        for each in book_of(model).entries()
    ]
