"""A language model with one of its adapters: to front ends, a model of the adapter's name."""

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from headway.errors import InvalidInput
from headway.hosting.registry import Array, Ask, ServedModel


class AdaptedModel:
    """A model with an adapter. Made for a request; the model itself does the work."""

    def __init__(self, model: ServedModel, adapter: str) -> None:
        self._model = model
        self.name = adapter

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        return self._model.stream(value, self._adapted(ask))

    async def predict(self, value: Any, ask: Ask) -> Any:
        return await self._model.predict(value, self._adapted(ask))

    async def predict_many(
        self, values: Sequence[Any], asks: Ask | Sequence[Ask], *, keep_errors: bool = False
    ) -> list[Any]:
        adapted: Ask | list[Ask]
        if isinstance(asks, Ask):
            adapted = self._adapted(asks)
        else:
            adapted = [self._adapted(ask) for ask in asks]
        return await self._model.predict_many(values, adapted, keep_errors=keep_errors)

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        return await self._model.infer(inputs, self._adapted(ask))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _adapted(self, ask: Ask) -> Ask:
        if ask.adapter not in ("", self.name):
            raise InvalidInput(
                f"Headway-Adapter: {ask.adapter!r} cannot be combined with adapter {self.name!r}"
            )
        return dataclasses.replace(ask, adapter=self.name)
