"""The models as one key sees them: those it may use, its tenant and quota on every call."""

import dataclasses
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from headway.errors import Forbidden, NotReady
from headway.runtime.calls import DirectCall
from headway.server.guard.keys import Caller
from headway.server.serving import Array, Ask, Registry, ServedModel

# Of the registry: whether all is ready, and what only an administrator's routes ask for.
HARMLESS = frozenset(["is_ready", "is_draining", "drain"])


class KeyedRegistry:
    """A registry's face for one caller. It hands on only what it knows to be harmless."""

    def __init__(self, registry: Registry, caller: Caller) -> None:
        self._registry: Any = registry
        self._caller = caller
        self._seen: weakref.WeakKeyDictionary[ServedModel, KeyedModel] = weakref.WeakKeyDictionary()

    def names(self) -> list[str]:
        return [name for name in self._registry.names() if self._caller.may_use(name)]

    def get(self, name: str, version: str = "") -> ServedModel:
        self._check(name)
        return self._keyed(self._registry.get(name, version))

    def get_ready(self, name: str, version: str = "") -> ServedModel:
        self._check(name)
        return self._keyed(self._registry.get_ready(name, version))

    def __getattr__(self, name: str) -> Any:
        if name not in HARMLESS:
            raise AttributeError(f"{name} is not for somebody with a key")
        return getattr(self._registry, name)

    def _check(self, name: str) -> None:
        if not self._caller.may_use(name):  # whether there is one or not
            raise Forbidden(f"key {self._caller.key.id!r} may not use model {name!r}")

    def _keyed(self, model: ServedModel) -> ServedModel:
        keyed = self._seen.get(model)
        if keyed is None:
            keyed = self._seen[model] = KeyedModel(model, self._caller)
        return cast(ServedModel, keyed)


class KeyedModel:
    """One model for one caller. It does not keep the model: one that is unloaded can go."""

    def __init__(self, model: ServedModel, caller: Caller) -> None:
        self._model = weakref.ref(model)
        self._caller = caller

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        rows = max((len(array) for array in inputs.values() if array.ndim), default=1)
        return await self._take(rows).infer(inputs, self._as_caller(ask))

    async def predict(self, value: Any, ask: Ask) -> Any:
        return await self._take(1).predict(value, self._as_caller(ask))

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        return self._take(1).stream(value, self._as_caller(ask))

    @property
    def is_direct(self) -> bool:
        return False  # that way has neither tenant nor quota

    def submit_direct(self, call: DirectCall) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        """What looks, and does not ask the model for anything."""
        return getattr(self._get(), name)

    def _take(self, rows: int) -> ServedModel:
        model = self._get()
        self._caller.account.take_rows(rows, time.monotonic())
        return model

    def _as_caller(self, ask: Ask) -> Ask:
        """Whatever tenant a header names: the key says whose request it is."""
        return dataclasses.replace(ask, tenant=self._caller.key.tenant)

    def _get(self) -> ServedModel:
        model = self._model()
        if model is None:
            raise NotReady("the model has been unloaded", retry_after_s=1.0)
        return model
