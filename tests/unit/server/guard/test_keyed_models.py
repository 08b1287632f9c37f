"""A key's view of models: nothing that asks a model for work goes past it."""

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy
import pytest

from headway.config import KeyConfig
from headway.errors import Forbidden, QuotaExceeded
from headway.hosting.registry import Ask, Registry, ServedModel
from headway.runtime.driving.calls import DirectCall
from headway.server.auth.keys import Caller, KeyRing, new_key
from headway.server.auth.models import HARMLESS, KeyedModel, KeyedRegistry

LOOKS = {
    "held",
    "clock",
    "withdraw",
    "is_direct",
    "is_ready",
    "health",
    "takes_parameter",
    "workers",
}  # they ask for no work


class Recorder:
    """A model that tells who asked."""

    version = "1"
    is_ready = True

    takes_direct = True

    def __init__(self, name: str) -> None:
        self.name = name

    def submit_direct(self, call: DirectCall) -> bool:
        return self.takes_direct

    def record(self, rows: int, started: float, error: BaseException | None) -> None:
        pass

    async def infer(self, inputs: Mapping[str, Any], ask: Ask) -> Any:
        return ask

    async def predict(self, value: Any, ask: Ask) -> Any:
        return ask

    async def predict_many(self, values: Any, asks: Any, *, keep_errors: bool = False) -> Any:
        return [asks] * len(values) if isinstance(asks, Ask) else asks

    async def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        yield ask


def caller(**settings: Any) -> Caller:
    key = new_key()
    ring = KeyRing([KeyConfig(id="k", hash=key.hash, tenant="acme", **settings)], 0.0)
    found = ring.find({"x-api-key": key.key})
    assert found is not None
    return found


def registry(*names: str) -> Registry:
    made = Registry()
    for name in names:
        made.add(Recorder(name))  # type: ignore[arg-type]
    return made


def test_everything_that_works_is_the_keys_own() -> None:
    own = vars(KeyedModel)
    asks = {name for name in vars(ServedModel) if not name.startswith("_")}
    assert asks - LOOKS <= set(own), "a new way to a model needs its tenant and its quota"


def test_a_registry_is_seen_through_the_key_or_not_at_all() -> None:
    for name in vars(Registry):
        if not name.startswith("_") and name not in ("add", "switch"):
            seen = name in HARMLESS or name in vars(KeyedRegistry)
            assert seen, f"whose models does Registry.{name} show?"
    with pytest.raises(AttributeError):
        KeyedRegistry(registry("m"), caller()).add(Recorder("n"))


def test_the_keys_tenant_goes_before_what_the_caller_says() -> None:
    models = registry("m")
    keyed = KeyedRegistry(models, caller()).get_ready("m")
    ask = Ask(tenant="somebody else", priority="high")
    rows = {"x": numpy.zeros((2, 1))}

    async def asked() -> list[Ask]:
        chunks = [chunk async for chunk in keyed.stream(1, ask)]
        many = [*await keyed.predict_many([1], ask), *await keyed.predict_many([1, 2], [ask] * 2)]
        return [await keyed.infer(rows, ask), await keyed.predict(1, ask), *chunks, *many]  # type: ignore[list-item]

    for seen in asyncio.run(asked()):
        assert (seen.tenant, seen.priority) == ("acme", "high")


def test_rows_are_counted_by_the_largest_tensor() -> None:
    models = registry("m")
    keyed = KeyedRegistry(models, caller(rows_per_s=1.0)).get_ready("m")
    asyncio.run(keyed.infer({"x": numpy.zeros((5, 1))}, Ask()))  # type: ignore[arg-type]
    with pytest.raises(QuotaExceeded) as refused:
        asyncio.run(keyed.predict(1, Ask()))
    assert refused.value.retry_after_s == pytest.approx(5.0, abs=1.0)
    with pytest.raises(QuotaExceeded):
        keyed.stream(1, Ask())


def test_values_of_one_request_are_counted_together() -> None:
    keyed = KeyedRegistry(registry("m"), caller(rows_per_s=1.0)).get_ready("m")
    asyncio.run(keyed.predict_many([1] * 5, Ask()))
    with pytest.raises(QuotaExceeded):
        asyncio.run(keyed.predict_many([1], Ask()))


def test_other_models_are_neither_listed_nor_told_apart_from_none() -> None:
    view = KeyedRegistry(registry("a", "b"), caller(models=("a",)))
    assert view.names() == ["a"]
    assert view.get("a").name == "a"
    said = set()
    for name in ("b", "absent"):
        for get in (view.get, view.get_ready):
            with pytest.raises(Forbidden) as refused:
                get(name)
            said.add(str(refused.value).replace(name, "…"))
    assert len(said) == 1


def test_a_model_is_the_same_each_time_and_is_forgotten_when_it_is_gone() -> None:
    models = registry("m")
    view = KeyedRegistry(models, caller())
    forgotten: list[object] = []
    view.on_gone(forgotten.append)
    keyed = view.get("m")
    assert view.find_ready("m") is keyed
    models.add(Recorder("m"))  # type: ignore[arg-type]
    assert forgotten == [keyed]
    assert view.get("m") is not keyed


def test_a_key_that_nobody_uses_is_not_remembered() -> None:
    models = registry("m")
    view = weakref.ref(KeyedRegistry(models, caller()))
    gc.collect()
    assert view() is None
    models.add(Recorder("m"))  # type: ignore[arg-type]


def test_the_registry_does_not_grow_with_keys_that_come_and_go() -> None:
    class Counting(Registry):
        listening = 0

        def on_gone(self, forget: Any) -> None:
            super().on_gone(forget)
            self.listening += 1

        def off_gone(self, forget: Any) -> None:
            super().off_gone(forget)
            self.listening -= 1

    models = Counting()
    for _ in range(3):
        KeyedRegistry(models, caller())
    gc.collect()
    assert models.listening == 0


def test_the_direct_way_has_its_tenant_and_its_quota() -> None:
    who = caller(concurrent=1)
    keyed = KeyedRegistry(registry("m"), who).get("m")
    first, second = DirectCall(1), DirectCall(2)
    assert keyed.submit_direct(first)
    assert (first.tenant, who.account.running) == ("acme", 1)
    assert not keyed.submit_direct(second)  # the other way says why
    keyed.record(1, 0.0, None)
    assert who.account.running == 0
    assert keyed.submit_direct(second)


def test_what_the_model_does_not_take_directly_costs_nothing() -> None:
    who = caller(requests_per_s=1.0, rows_per_s=1.0)
    models = registry("m")
    models.get("m").takes_direct = False  # type: ignore[attr-defined]
    keyed = KeyedRegistry(models, who).get("m")
    for _ in range(3):
        assert not keyed.submit_direct(DirectCall(1))
    assert who.account.running == 0
    assert who.account.may_begin(1, time.monotonic())
