"""The models, as front ends (HTTP, gRPC) see them: one by name and version, or all.

Front ends pass decoded values to a model and get results; they see neither the scheduler nor how
models are loaded. The keeper (`repository/keeper.py`) registers which model answers to a name.
"""

import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy

from headway.core.lifecycle.health import Health, is_live
from headway.core.queueing.quota import Allowance
from headway.errors import DeadlineExceeded, Forbidden, HeadwayError, NotReady, UnknownModel
from headway.hosting.explaining import Story
from headway.model import Tensor
from headway.observe.history import ModelHistory
from headway.observe.metrics import VersionReadiness
from headway.runtime.driving.calls import DirectCall
from headway.signature import Signature

if TYPE_CHECKING:
    from headway.hosting.generation.language import Language
    from headway.hosting.repository.keeper import Keeper

Array = numpy.ndarray[Any, Any]
# What `{"items": […]}` is for a model: one value, as its type hint has a field of that name or
# takes any object; several; or unclear, as there is no hint.
ItemsMean: TypeAlias = Literal["one", "several", "unclear"]


@dataclass(frozen=True, slots=True)
class Ask:
    """The options of a request."""

    priority: Literal["high", "normal", "low"] = "normal"
    deadline_ms: float | None = None
    tenant: str = ""
    partition: Hashable = None
    parameters: Mapping[str, Any] | None = None  # for the model: all that it takes
    story: Story | None = None  # notes the request's batches, if the caller asked
    allowance: Allowance | None = None  # the quota of the caller's key, charged for rows
    adapter: str = ""  # a language model's adapter, by name

    def pay(self, rows: int) -> None:
        """Called by every model for what it is asked to do. Raises QuotaExceeded."""
        if self.allowance is not None:
            self.allowance.take_rows(rows, time.monotonic())

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of the answer: the explanation, if the caller asked."""
        return () if self.story is None else self.story.headers()

    def after(self, seconds: float) -> "Ask":
        """These options, `seconds` later: less of the caller's time is left. Raises
        DeadlineExceeded."""
        if self.deadline_ms is None:
            return self
        left_ms = self.deadline_ms - seconds * 1e3
        if left_ms <= 0:
            raise DeadlineExceeded("the deadline passed before the request came to the queue")
        return replace(self, deadline_ms=left_ms)

    def within(self, limit_ms: float | None) -> "Ask":
        """These options with a deadline of at most `limit_ms`; None: no limit."""
        if limit_ms is None or (self.deadline_ms is not None and self.deadline_ms <= limit_ms):
            return self
        return replace(self, deadline_ms=limit_ms)


PLAIN = Ask()  # nothing special; most ask for that


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A worker, as an operator sees it."""

    model: str
    version: str
    pid: int | None  # None: it has no process now
    state: str
    restarts: int
    last_error: str


class ServedModel(Protocol):
    """The face that every front end uses. Every method has the ask pay for its rows first;
    for a direct call, the code that submits it does."""

    name: str
    version: str
    inputs: Sequence[Tensor]  # v2 dtype names are derived from the numpy names; bytes are "object"
    outputs: Sequence[Tensor]
    max_batch_size: int
    streams: bool
    only_streams: bool
    history: ModelHistory | None  # of its batches and direct requests; None: nobody keeps it
    signature: Signature | None  # of a model over values; None: its tensors describe it
    media_type: str  # of answers that are files; empty: JSON, or by the file's first bytes
    meaning_of_items: ItemsMean
    labels: Mapping[str, Sequence[str]] | None  # the names of classes, by output
    language: "Language | None"  # the text side of a loaded language model

    @property
    def unready(self) -> str:
        """The reason why it is not ready, for callers."""

    def json_schemas(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The schemas of the inputs and outputs of `predict`."""

    def devices(self) -> list[str]:
        """The device of each worker; empty: not known."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def health(self) -> Health: ...

    def held(self) -> AbstractContextManager[None]:
        """Keep the model from being closed, even if another version replaces it: for a caller that
        waits between finding it and calling it."""

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        """Run named arrays, rows first. Raises HeadwayError."""

    async def predict(self, value: Any, ask: Ask) -> Any:
        """Run one value of the model's type hints (for the plain JSON route, and OpenAI's)."""

    async def predict_many(
        self, values: Sequence[Any], asks: Ask | Sequence[Ask], *, keep_errors: bool = False
    ) -> list[Any]:
        """The values of one request, with what is asked for all or for each: fed to the queue as
        it has room. The first error withdraws the rest and is raised; with `keep_errors` it
        takes its value's place. Whether the request is accepted is known by its first value."""

    def takes_parameter(self, name: str) -> bool:
        """Does the model know it? Unknown parameters are refused."""

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]: ...

    def workers(self) -> list[WorkerLine]: ...

    # ---- the direct way: one row of fixed shape, no options, no task

    @property
    def is_direct(self) -> bool:
        """Can the direct way be used at all?"""

    @property
    def is_simple(self) -> bool:
        """Can the direct way be used for one value of the plain route?"""

    def clock(self) -> float: ...

    def submit_direct(self, call: DirectCall) -> bool:
        """Its value is named arrays of one row, checked. False: ask `infer`."""

    def withdraw(self, call: DirectCall) -> None: ...

    def record(self, rows: int, started: float, error: BaseException | None) -> None:
        """A direct call has been answered."""


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version of a model, in v2's words."""

    name: str
    version: str
    state: Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]
    reason: str = ""


class Registry:
    """The models being served, by name and version."""

    def __init__(self) -> None:
        self._models: dict[str, ServedModel] = {}  # the default versions
        self._versions: dict[str, dict[str, ServedModel]] = {}
        self.aliases: Mapping[str, str] = {}  # other names of models, each with its model's
        self._forgetters: list[Callable[[ServedModel], None]] = []
        self.keeper: Keeper | None = None  # None: what was added stays
        self.is_draining = False  # not ready, so that balancers send others elsewhere

    def add(self, model: ServedModel) -> None:
        self.switch(model.name, model, [model])

    def switch(
        self, name: str, answering: ServedModel | None, models: Sequence[ServedModel]
    ) -> None:
        """Replace the versions of a model, and its default version, in one step: no request comes
        between."""
        before = self._versions.get(name, {})
        if answering is None:
            self._models.pop(name, None)
            self._versions.pop(name, None)
        else:
            self._models[name] = answering
            self._versions[name] = {model.version: model for model in models}
        for gone in before.values():
            if all(gone is not model for model in models):
                for forget in list(self._forgetters):
                    forget(gone)

    def on_gone(self, forget: Callable[[ServedModel], None]) -> None:
        """Call this with every model that leaves: code that keeps a reference keeps its weights."""
        self._forgetters.append(forget)

    def off_gone(self, forget: Callable[[ServedModel], None]) -> None:
        self._forgetters.remove(forget)

    def drain(self, *, is_draining: bool = True) -> None:
        """Report the server as not ready, or end that; requests are answered all the same."""
        self.is_draining = is_draining

    def names(self) -> list[str]:
        kept = self.keeper.names() if self.keeper is not None else ()
        return sorted({*self._models, *kept})

    def adapters(self) -> dict[str, str]:
        """The adapters' names, which can be called like models, each with its model's name."""
        found: dict[str, str] = {}
        for name, model in sorted(self._models.items()):
            for each in getattr(model, "adapter_names", tuple)():
                found.setdefault(each, name)
        return {name: found[name] for name in sorted(found) if name not in self._models}

    def answering(self) -> list[ServedModel]:
        """The default version of every model."""
        return [model for _, model in sorted(self._models.items())]

    def models(self, name: str = "") -> list[ServedModel]:
        """Every version that answers, of one model or of all."""
        names = [name] if name else sorted(self._versions)
        return [
            model for each in names for _, model in sorted(self._versions.get(each, {}).items())
        ]

    def get(self, name: str, version: str = "") -> ServedModel:
        model = self.find_loaded(name, version) or self._adapted(name)
        if model is None and name in self.aliases:
            return self.get(self.aliases[name], version)
        if model is None:
            raise self._why_not(name, version)
        return model

    def find_loaded(self, name: str, version: str = "") -> ServedModel | None:
        """The model, ready or not; None: there is none, or not yet."""
        if not version:
            return self._models.get(name)
        return self._versions.get(name, {}).get(version)

    def find_ready(self, name: str, version: str = "") -> ServedModel | None:
        """The model that answers now. None: it loads when it is asked for, so ask `wait_ready`.
        Raises the reason if there is none."""
        model = self.find_loaded(name, version)
        if model is None:
            model = self._adapted(name)
        if model is None and name in self.aliases:
            return self.find_ready(self.aliases[name], version)
        if model is None:
            if self.keeper is not None and self.keeper.why_not(name, version) is None:
                return None
            raise self._why_not(name, version)
        if not model.is_ready:
            raise NotReady(f"model {name!r} is not ready: {model.unready}", retry_after_s=1.0)
        return model

    async def wait_ready(
        self, name: str, version: str = "", *, timeout_s: float | None = None
    ) -> ServedModel:
        """The model, once it is loaded, for as long as the caller has time."""
        found = self.find_ready(name, version)
        if found is not None:
            return found
        assert self.keeper is not None
        name = self.aliases.get(name, name)
        return await self.keeper.wait_ready(name, version, timeout_s)

    @property
    def unready(self) -> str:
        """Why it is not ready, without the name of a model: the caller may have no key."""
        return "the server is draining" if self.is_draining else "not every model is ready"

    @property
    def is_ready(self) -> bool:
        if self.is_draining:
            return False
        if self.keeper is not None:
            return self.keeper.is_ready
        return bool(self._models) and all(model.is_ready for model in self._models.values())

    @property
    def is_loading(self) -> bool:
        """Is it not ready because a model is still being loaded?"""
        if self.is_ready or self.is_draining:
            return False
        return any(entry.state == "LOADING" for entry in self.index())

    @property
    def is_live(self) -> bool:
        """Can anything complete? If not, only a new process helps."""
        return is_live(model.health for model in self._models.values())

    def readiness(self) -> list[VersionReadiness]:
        if self.keeper is not None:
            return self.keeper.readiness()
        return [VersionReadiness(each.name, each.version, each.is_ready) for each in self.models()]

    def index(self) -> list[VersionEntry]:
        if self.keeper is not None:
            return self.keeper.index()
        return [
            VersionEntry(model.name, model.version, "READY" if model.is_ready else "UNAVAILABLE")
            for model in self.models()
        ]

    def may_change(self) -> "Keeper":
        """The keeper, for requests to load and unload."""
        if self.keeper is None:
            raise Forbidden("models are loaded at start; this server does not load or unload them")
        return self.keeper

    def _adapted(self, name: str) -> ServedModel | None:
        """A model with its adapter of this name. Looked for where no model has the name."""
        for _, model in sorted(self._models.items()):
            adapted = getattr(model, "adapted", None)
            found: ServedModel | None = None if adapted is None else adapted(name)
            if found is not None:
                return found
        return None

    def _why_not(self, name: str, version: str) -> HeadwayError:
        if self.keeper is None:
            return unknown_model(name, version, self.names())
        return self.keeper.why_not(name, version) or _asleep(name)


def _asleep(name: str) -> NotReady:
    return NotReady(f"model {name!r} is not loaded yet", retry_after_s=1.0)


def unknown_model(name: str, version: str, names: Sequence[str]) -> UnknownModel:
    """`names`: the models that the caller may use; the error lists them."""
    known = f"; there are: {', '.join(names)}" if names else ""
    if version and name in names:
        known = "; the model's metadata list its versions"
    wanted = f"{name!r} version {version}" if version else f"{name!r}"
    if version and not version.isdecimal():  # Triton's words, which its clients look for
        wanted += f": failed to get model version from specified version string {version!r}"
    return UnknownModel(f"no model {wanted}{known}")
