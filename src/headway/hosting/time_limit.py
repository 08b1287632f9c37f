"""A model with a time limit of its own: every call has a deadline, whether it brings one or not."""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any

from headway.hosting.hosted import Served
from headway.hosting.registry import Array, Ask


class TimeLimited(Served):
    """Only for models that have `timeout_ms`: the others pay nothing."""

    @property
    def is_direct(self) -> bool:
        return False  # that way knows no deadlines

    @property
    def is_simple(self) -> bool:
        return False

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        return await super().infer(inputs, self._in_time(ask))

    async def predict(self, value: Any, ask: Ask) -> Any:
        return await super().predict(value, self._in_time(ask))

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        return super().stream(value, self._in_time(ask))

    def _in_time(self, ask: Ask) -> Ask:
        limit_ms = self.config.timeout_ms
        assert limit_ms is not None
        if ask.deadline_ms is not None and ask.deadline_ms <= limit_ms:
            return ask
        return dataclasses.replace(ask, deadline_ms=limit_ms)
