"""A caller's view of models, and what it pays for what it asks of them."""

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import numpy
import pytest

import headway
from headway.config import KeyConfig, ModelConfig
from headway.errors import Forbidden, QuotaExceeded, UnknownModel
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask, Registry
from headway.server.auth.keys import NOBODY, Caller, KeyRing, new_key
from headway.server.service import models as models_module
from headway.server.service.models import VisibleModels
from headway.server.service.options import ask_of
from headway.wire.headers import WireHeaders
from headway.wire.messages import Request

SERVER = Path(models_module.__file__).parent


class Named:
    """A model that is only looked at."""

    version = "1"
    is_ready = True

    def __init__(self, name: str) -> None:
        self.name = name


class Double(headway.Model[float, float]):
    def predict(self, inputs: list[float]) -> list[float]:
        return [2 * each for each in inputs]

    def stream(self, value: float) -> Any:
        yield value


def caller(**settings: Any) -> Caller:
    key = new_key()
    ring = KeyRing([KeyConfig(id="k", hash=key.hash, tenant="acme", **settings)], 0.0)
    return ring.find({"x-api-key": key.key})


def models(*names: str) -> VisibleModels:
    registry = Registry()
    for name in names:
        registry.add(Named(name))  # type: ignore[arg-type]
    return VisibleModels(registry)


def test_whoever_looks_says_who_it_is() -> None:
    for name, method in vars(VisibleModels).items():
        if not name.startswith("_"):
            assert list(inspect.signature(method).parameters)[:2] == ["self", "caller"], name


def test_front_ends_ask_the_registry_only_for_what_concerns_no_model() -> None:
    """Or for what anybody may know: whether one is ready whose name he has."""
    harmless = {"is_ready", "is_live", "is_draining", "drain", "find_ready", "unready"}
    for path in [*SERVER.glob("api/**/*.py"), *SERVER.glob("grpc/*.py")]:
        used = re.findall(r"\b_?registry\.(\w+)\b(?! import)", path.read_text())
        # An administrator who loads an adapter is told that its name is taken.
        more = {"adapters", "names"} if path.name == "adapting.py" else set()
        assert set(used) <= harmless | more, path
        assert "Ask(" not in path.read_text() or path.name == "asking.py", path


def test_other_models_are_neither_listed_nor_told_apart_from_none() -> None:
    seen, who = models("a", "b"), caller(models=("a",))
    assert seen.names(who) == ["a"]
    assert [each.name for each in seen.versions(who)] == ["a"]
    assert [each.name for each in seen.answering(who)] == ["a"]
    assert [each.name for each in seen.index(who)] == ["a"]
    assert seen.get(who, "a").name == "a"
    said = set()
    for name in ("b", "absent"):
        for get in (seen.get, seen.find_ready, seen.of_statistics):
            with pytest.raises(Forbidden) as refused:
                get(who, name)
            said.add(str(refused.value).replace(name, "…"))
    assert len(said) == 1


def test_an_unknown_model_names_only_those_that_the_caller_may_use() -> None:
    seen = models("a", "b")
    for who, told in ((None, "there are: a, b"), (caller(), "there are: a, b")):
        for get in (seen.get, seen.find_ready):
            with pytest.raises(UnknownModel, match=told):
                get(who, "absent")
    with pytest.raises(UnknownModel) as unknown:
        seen.find_ready(caller(models=("a", "absent")), "absent")
    assert "there are: a" in str(unknown.value)
    assert "b" not in str(unknown.value).partition(";")[2]
    with pytest.raises(UnknownModel) as unknown:
        seen.find_ready(NOBODY, "absent")
    assert "there are" not in str(unknown.value)


def test_the_keys_tenant_goes_before_what_the_caller_says() -> None:
    who = caller()
    for headers in ({"headway-tenant": "else", "headway-priority": "high"}, {}):
        request = Request("POST", "/", "", headers, b"", "id")
        request.caller = who
        for parameters in ({"tenant": "somebody else"}, {}):
            ask = ask_of(parameters, request)
            assert (ask.tenant, ask.allowance) == ("acme", who.allowance)
            assert ask.priority == ("high" if headers else "normal")


def test_a_request_without_options_costs_its_caller_no_new_ask() -> None:
    request = Request("POST", "/", "", WireHeaders({b"x-api-key": b"k"}), b"", "id")
    request.caller = who = caller()
    assert ask_of({}, request) is who.plain


def test_every_way_to_a_model_is_paid_for() -> None:
    async def asked() -> None:
        served = Served(ModelConfig(name="m", target="m", warm_up=False), model=Double())
        await served.start()
        try:
            for rows, work in {
                5: lambda ask: served.infer({"input": numpy.zeros(5)}, ask),
                3: lambda ask: served.predict_many([1.0] * 3, ask),
                2: lambda ask: served.predict_many([1.0] * 2, [ask] * 2),
                1: lambda ask: served.predict(1.0, ask),
            }.items():
                ask = Ask(allowance=caller(rows_per_s=1.0).allowance)
                await work(ask)
                with pytest.raises(QuotaExceeded) as refused:
                    await work(ask)
                assert refused.value.retry_after_s == pytest.approx(rows, abs=0.9)
            ask = Ask(allowance=caller(rows_per_s=1.0).allowance)
            assert [each async for each in served.stream(1.0, ask)] == [1.0]
            with pytest.raises(QuotaExceeded):
                served.stream(1.0, ask)
        finally:
            await served.close()

    asyncio.run(asked())
