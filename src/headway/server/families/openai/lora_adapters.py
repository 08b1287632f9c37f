"""vLLM's routes for LoRA adapters, `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`."""

import msgspec

from headway.server.auth.access import Access
from headway.server.service.adapters import book_of, load_adapter, model_of
from headway.server.service.models import VisibleModels
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.wire.messages import Request, Response

_TEXT = "text/plain; charset=utf-8"


class LoadLoraRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    lora_name: str
    lora_path: str
    load_inplace: bool = False  # whether it may take the place of one of that name
    model: str = ""  # the adapter's model; vLLM serves only one and has no such field


class UnloadLoraRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    lora_name: str
    lora_int_id: int | None = None  # vLLM's own number: without effect
    model: str = ""


class LoraAdapters:
    """The routes and their handlers, over the models."""

    def __init__(self, models: VisibleModels) -> None:
        self._models = models

    def routes(self) -> list[Route]:
        example = {"lora_name": "pirate", "lora_path": "adapters/pirate"}
        load = Route(
            *("POST", "/v1/load_lora_adapter", self.load_lora_adapter),
            *(Access.ADMIN, ErrorFormat.OPENAI),
            tag="openai",
            summary="Load a LoRA adapter from a PEFT folder",
            takes=Takes(LoadLoraRequest, example),
            gives=Gives(None, ("text/plain",)),
            task="text-generation",
        )
        unload = load._replace(
            template="/v1/unload_lora_adapter",
            handler=self.unload_lora_adapter,
            summary="Unload a LoRA adapter; running answers are completed",
            takes=Takes(UnloadLoraRequest, {"lora_name": "pirate"}),
        )
        return [load, unload]

    async def load_lora_adapter(self, request: Request, asked: LoadLoraRequest) -> Response:
        model = model_of(self._models, request.caller, asked.model)
        name = asked.lora_name
        await load_adapter(self._models, model, name, asked.lora_path, replaces=asked.load_inplace)
        return _text(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_lora_adapter(self, request: Request, asked: UnloadLoraRequest) -> Response:
        name = asked.lora_name
        parent = asked.model or self._models.adapters(request.caller).get(name, "")
        await book_of(model_of(self._models, request.caller, parent)).unload(name)
        return _text(f"Success: LoRA adapter '{name}' removed successfully.")


def _text(text: str) -> Response:
    return Response(text.encode(), content_type=_TEXT)
