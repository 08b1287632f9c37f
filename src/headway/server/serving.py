"""One model as the server sees it: its signature, its batcher, its figures.

Front ends (HTTP, gRPC) hand it decoded values and get results; they never see the scheduler.
"""

from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy

from headway.errors import NotReady, UnknownModel
from headway.model import Tensor
from headway.runtime.calls import DirectCall
from headway.server.explaining import Story

Array = numpy.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller wants beside the answer."""

    priority: Literal["high", "normal", "low"] = "normal"
    deadline_ms: float | None = None
    tenant: str = ""
    partition: Hashable = None
    parameters: Mapping[str, Any] | None = None  # for the model, which takes what it knows
    story: Story | None = None  # told what became of the request, where somebody asked


PLAIN = Ask()  # nothing special; most ask for that


class ServedModel(Protocol):
    """The face that every front end uses."""

    name: str
    version: str
    inputs: Sequence[Tensor]  # v2 dtype names are derived from the numpy names; bytes are "object"
    outputs: Sequence[Tensor]
    max_batch_size: int
    streams: bool

    @property
    def is_ready(self) -> bool: ...

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        """Named arrays, rows first. Raises HeadwayError."""
        ...

    async def predict(self, value: Any, ask: Ask) -> Any:
        """One value as the model's own type hints say (the plain JSON route, OpenAI)."""
        ...

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]: ...

    # ---- the direct way: one row of fixed shape, no wishes, no task

    @property
    def is_direct(self) -> bool:
        """Whether it can be taken at all."""
        ...

    def clock(self) -> float: ...

    def submit_direct(self, call: DirectCall) -> bool:
        """Its value is named arrays of one row, checked. False: ask `infer`."""
        ...

    def withdraw(self, call: DirectCall) -> None: ...

    def record(self, rows: int, started: float, error: BaseException | None) -> None:
        """A direct call has been answered."""
        ...


class Registry:
    """The models being served, by name."""

    def __init__(self) -> None:
        self._models: dict[str, ServedModel] = {}
        self.is_draining = False  # not ready, so that balancers send others elsewhere

    def add(self, model: ServedModel) -> None:
        self._models[model.name] = model

    def drain(self, *, is_draining: bool = True) -> None:
        """Not ready from now on, whatever the models are; requests are answered all the same."""
        self.is_draining = is_draining

    def names(self) -> list[str]:
        return sorted(self._models)

    def get(self, name: str, version: str = "") -> ServedModel:
        model = self._models.get(name)
        if model is None or version not in ("", model.version):
            known = ", ".join(self.names()) or "none"
            wanted = f"{name!r} version {version}" if version else f"{name!r}"
            raise UnknownModel(f"no model {wanted}; there are: {known}")
        return model

    def get_ready(self, name: str, version: str = "") -> ServedModel:
        model = self.get(name, version)
        if not model.is_ready:
            raise NotReady(f"model {name!r} is not ready", retry_after_s=1.0)
        return model

    @property
    def is_ready(self) -> bool:
        return (
            not self.is_draining
            and bool(self._models)
            and all(model.is_ready for model in self._models.values())
        )
