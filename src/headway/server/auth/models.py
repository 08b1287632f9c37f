"""The models as one key sees them: those it may use, its tenant and quota on every call."""

import dataclasses
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from headway.errors import Forbidden, UnknownModel
from headway.hosting.generation.adapted import AdaptedModel
from headway.hosting.registry import (
    Array,
    Ask,
    IndexEntry,
    ModelsKeeper,
    Readiness,
    Registry,
    ServedModel,
    unknown_model,
)
from headway.runtime.driving.calls import DirectCall
from headway.server.auth.keys import Caller

# Of the registry: whether all is ready, and what only an administrator's routes ask for.
HARMLESS = frozenset(["is_ready", "is_live", "is_draining", "drain"])


class NamelessRegistry:
    """A registry's face for somebody without a key: it says of a model whose name one knows whether
    it is ready, and names none."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.on_gone, self.off_gone = registry.on_gone, registry.off_gone

    def find_ready(self, name: str, version: str = "") -> ServedModel | None:
        with _naming(name, version, ()):
            return self._registry.find_ready(name, version)

    def __getattr__(self, name: str) -> Any:
        if name not in ("is_ready", "is_live"):
            raise AttributeError(f"{name} is not for somebody without a key")
        return getattr(self._registry, name)


class KeyedRegistry:
    """A registry's face for one caller. It hands on only what it knows to be harmless."""

    def __init__(self, registry: Registry, caller: Caller) -> None:
        self._registry: Any = registry
        self._caller = caller
        self._seen: dict[ServedModel, KeyedModel] = {}
        self._forgetters: list[Callable[[ServedModel], None]] = []
        gone = _weakly(self)
        registry.on_gone(gone)
        # Keys come and go while the registry stays: it must not grow with each.
        weakref.finalize(self, registry.off_gone, gone).atexit = False

    def names(self) -> list[str]:
        return [name for name in self._registry.names() if self._caller.may_use(name)]

    def adapters(self) -> dict[str, str]:
        found = self._registry.adapters().items()
        return {name: model for name, model in found if self._caller.may_use(name)}

    def get(self, name: str, version: str = "") -> ServedModel:
        with self._allowed(name, version):
            return self._keyed(self._registry.get(name, version))

    def get_ready(self, name: str, version: str = "") -> ServedModel:
        with self._allowed(name, version):
            return self._keyed(self._registry.get_ready(name, version))

    def find_ready(self, name: str, version: str = "") -> ServedModel | None:
        if not self._caller.may_use(name):
            raise self._forbidden(name)
        try:  # asked for every request: no context manager
            model = self._registry.find_ready(name, version)
        except UnknownModel:
            raise unknown_model(name, version, self.names()) from None
        return None if model is None else self._keyed(model)

    async def wait_ready(
        self, name: str, version: str = "", *, timeout_s: float | None = None
    ) -> ServedModel:
        with self._allowed(name, version):
            return self._keyed(await self._registry.wait_ready(name, version, timeout_s=timeout_s))

    def may_change(self) -> ModelsKeeper:
        return cast(ModelsKeeper, KeyedKeeper(self._registry.may_change(), self._allowed))

    def answering(self) -> list[ServedModel]:
        return self._those(self._registry.answering())

    def models(self, name: str = "") -> list[ServedModel]:
        return self._those(self._registry.models(name))

    def index(self) -> list[IndexEntry]:
        return [each for each in self._registry.index() if self._caller.may_use(each.name)]

    def readiness(self) -> list[Readiness]:
        return [each for each in self._registry.readiness() if self._caller.may_use(each.model)]

    def on_gone(self, forget: Callable[[ServedModel], None]) -> None:
        self._forgetters.append(forget)

    def off_gone(self, forget: Callable[[ServedModel], None]) -> None:
        self._forgetters.remove(forget)

    def gone(self, model: ServedModel) -> None:
        """Nobody here may keep it: its weights would stay."""
        keyed = self._seen.pop(model, None)
        if keyed is not None:
            for forget in list(self._forgetters):
                forget(cast(ServedModel, keyed))

    def __getattr__(self, name: str) -> Any:
        if name not in HARMLESS:
            raise AttributeError(f"{name} is not for somebody with a key")
        return getattr(self._registry, name)

    @contextmanager
    def _allowed(self, name: str, version: str = "") -> Iterator[None]:
        """Raises Forbidden, and names no models but the caller's own."""
        if not self._caller.may_use(name):
            raise self._forbidden(name)
        with _naming(name, version, self.names()):
            yield

    def _forbidden(self, name: str) -> Forbidden:
        """Whether there is such a model or not."""
        return Forbidden(f"key {self._caller.key.id!r} may not use model {name!r}")

    def _those(self, models: Iterable[ServedModel]) -> list[ServedModel]:
        return [self._keyed(each) for each in models if self._caller.may_use(each.name)]

    def _keyed(self, model: ServedModel) -> ServedModel:
        if isinstance(model, AdaptedModel):  # nobody says when it goes
            return cast(ServedModel, KeyedModel(cast(ServedModel, model), self._caller))
        keyed = self._seen.get(model)
        if keyed is None:
            keyed = self._seen[model] = KeyedModel(model, self._caller)
        return cast(ServedModel, keyed)


class KeyedKeeper:
    """Who loads and unloads, for one caller."""

    def __init__(
        self,
        keeper: ModelsKeeper,
        allowed: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._keeper = keeper
        self._allowed = allowed

    async def load(self, name: str, override: Mapping[str, Any] | None = None) -> None:
        with self._allowed(name):
            await self._keeper.load(name, override)

    async def reload(self, name: str) -> None:
        with self._allowed(name):
            await self._keeper.reload(name)

    async def unload(self, name: str) -> None:
        with self._allowed(name):
            await self._keeper.unload(name)


@contextmanager
def _naming(name: str, version: str, names: Sequence[str]) -> Iterator[None]:
    """An unknown model's error names these models, and no others."""
    try:
        yield
    except UnknownModel:
        raise unknown_model(name, version, names) from None


def _weakly(registry: KeyedRegistry) -> Callable[[ServedModel], None]:
    """A key that is no longer in use is not kept by the registry's memory of it."""
    reference = weakref.ref(registry)

    def gone(model: ServedModel) -> None:
        found = reference()
        if found is not None:
            found.gone(model)

    return gone


class KeyedModel:
    """One model for one caller."""

    def __init__(self, model: ServedModel, caller: Caller) -> None:
        self._model = model
        self._caller = caller

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        rows = max((len(array) for array in inputs.values() if array.ndim), default=1)
        return await self._take(rows).infer(inputs, self._as_caller(ask))

    async def predict(self, value: Any, ask: Ask) -> Any:
        return await self._take(1).predict(value, self._as_caller(ask))

    async def predict_many(
        self, values: Sequence[Any], asks: Ask | Sequence[Ask], *, keep_errors: bool = False
    ) -> list[Any]:
        keyed: Ask | list[Ask]
        if isinstance(asks, Ask):
            keyed = self._as_caller(asks)
        else:
            keyed = [self._as_caller(ask) for ask in asks]
        model = self._take(len(values))
        return await model.predict_many(values, keyed, keep_errors=keep_errors)

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        return self._take(1).stream(value, self._as_caller(ask))

    def submit_direct(self, call: DirectCall) -> bool:
        """False where the quota is used up, too: the other way says so."""
        account, now = self._caller.account, time.monotonic()
        if not account.may_begin(1, now):
            return False
        call.tenant = self._caller.key.tenant
        if not self._model.submit_direct(call):
            return False
        account.begin(now)
        account.take_rows(1, now)
        return True

    def record(self, rows: int, started: float, error: BaseException | None) -> None:
        """A direct request is over."""
        self._caller.account.end()
        self._model.record(rows, started, error)

    def __getattr__(self, name: str) -> Any:
        """What looks, and does not ask the model for anything."""
        return getattr(self._model, name)

    def _take(self, rows: int) -> ServedModel:
        self._caller.account.take_rows(rows, time.monotonic())
        return self._model

    def _as_caller(self, ask: Ask) -> Ask:
        """Whatever tenant a header names: the key says whose request it is."""
        if ask.adapter and not self._caller.may_use(ask.adapter):
            raise Forbidden(f"key {self._caller.key.id!r} may not use adapter {ask.adapter!r}")
        return dataclasses.replace(ask, tenant=self._caller.key.tenant)
