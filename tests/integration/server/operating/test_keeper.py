"""The model keeper on virtual time: it waits, puts models to sleep, retries and takes other
configurations."""

import asyncio
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.config import Config, ModelConfig, ServerConfig
from headway.errors import (
    Closed,
    ConfigError,
    DeadlineExceeded,
    InvalidInput,
    ModelFailed,
    NotReady,
    QueueFull,
    Unavailable,
    UnknownModel,
)
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask
from headway.hosting.repository import model_keeper
from headway.hosting.repository.building import forget_module
from headway.hosting.repository.keeper import Keeper
from headway.hosting.tables import ModelOrigin
from headway.server.run import make_served, serving
from headway.testing import now

ASK = Ask()
MODEL = """
import asyncio
import pathlib
import headway

class Slow(headway.Model[int, int]):
    def load(self) -> None:
        {load}

    async def predict(self, items: list[int]) -> list[int]:
        await asyncio.sleep({takes_s})
        return [{mark} for item in items]
"""


def write(root: Path, *, mark: int = 1, takes_s: float = 1.0, load: str = "pass") -> None:
    folder = root / "m" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(MODEL.format(mark=mark, takes_s=takes_s, load=load))


def settings(root: Path, **values: object) -> None:
    (root / "m").mkdir(exist_ok=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    (root / "m" / "model.toml").write_text("\n".join(lines))


@asynccontextmanager
async def keeping(root: Path, **server: object) -> AsyncIterator[Keeper]:
    values = {"repository": str(root), "cache_dir": str(root.parent / "cache"), **server}
    config = Config(server=ServerConfig(**values))  # type: ignore[arg-type]
    async with Keeper(config, make_served) as keeper:
        await keeper.wait_started()
        yield keeper


async def ask(keeper: Keeper, *, timeout_s: float | None = None) -> object:
    model = await keeper.registry.wait_ready("m", timeout_s=timeout_s)
    return await model.predict(0, ASK)


async def test_all_who_wait_for_a_sleeping_model_wait_quietly_for_one_load(tmp_path: Path) -> None:
    write(tmp_path, load=f"pathlib.Path({str(tmp_path)!r}, 'loads').mkdir()")  # a second fails
    settings(tmp_path, load="on-request", warm_up_s=3.0, max_batch_size=8)
    async with keeping(tmp_path) as keeper:
        assert now() == 0.0
        assert await asyncio.gather(*(ask(keeper) for _ in range(5))) == [1] * 5
    assert (tmp_path / "loads").is_dir()


async def test_waiting_ends_with_the_deadline_and_has_a_limit(tmp_path: Path) -> None:
    write(tmp_path)
    settings(tmp_path, load="on-request", warm_up_s=3.0, max_queue=2)
    async with keeping(tmp_path) as keeper:
        waiting = [asyncio.create_task(ask(keeper)) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(QueueFull):
            await ask(keeper)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        started = now()
        with pytest.raises(DeadlineExceeded):
            await ask(keeper, timeout_s=0.5)
        assert now() - started == pytest.approx(0.5)
        assert await waiting[0] == 1


async def test_a_model_that_answers_somebody_does_not_go_to_sleep(tmp_path: Path) -> None:
    write(tmp_path, takes_s=0.1)
    settings(tmp_path, load="on-request", unload_after_s=10.0, warm_up=False)
    async with keeping(tmp_path) as keeper:
        model = await keeper.registry.wait_ready("m")
        streaming = asyncio.create_task(_hold(model, 30.0))
        await asyncio.sleep(25.0)
        assert keeper.registry.find_ready("m") is model
        await streaming
        await asyncio.sleep(9.0)
        assert keeper.registry.find_ready("m") is model
        await asyncio.sleep(2.0)
        assert keeper.registry.find_ready("m") is None
        assert await ask(keeper) == 1


async def _hold(model: object, seconds: float) -> None:
    with model.held():  # type: ignore[attr-defined]
        await asyncio.sleep(seconds)


async def test_a_failed_load_is_tried_again_by_itself(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    write(tmp_path, load=f"pathlib.Path({str(gate)!r}).read_text()")
    settings(tmp_path, warm_up=False)
    async with keeping(tmp_path) as keeper:
        with pytest.raises(NotReady) as caught:
            keeper.registry.find_ready("m")
        assert caught.value.retry_after_s == pytest.approx(5.0)
        assert not keeper.is_ready
        gate.write_text("")
        await asyncio.sleep(5.1)
        assert await ask(keeper) == 1
        assert keeper.is_ready


async def test_a_load_that_takes_too_long_fails_and_the_old_version_stays(tmp_path: Path) -> None:
    write(tmp_path, takes_s=0.001)
    async with keeping(tmp_path) as keeper:
        write(tmp_path, mark=2, takes_s=100.0)
        settings(tmp_path, load_timeout_s=2.0, warm_up_s=50.0)
        with pytest.raises(InvalidInput, match="not ready after 2 s"):
            await keeper.load("m")
        assert await ask(keeper) == 1


async def test_an_unload_in_the_middle_of_a_load_wins(tmp_path: Path) -> None:
    write(tmp_path)
    settings(tmp_path, warm_up_s=5.0)
    async with keeping(tmp_path) as keeper:
        await keeper.unload("m")
        loading = asyncio.create_task(keeper.load("m"))
        await asyncio.sleep(0.5)
        await keeper.unload("m")
        with pytest.raises(InvalidInput, match="it was unloaded"):
            await loading
        with pytest.raises(UnknownModel):
            keeper.registry.find_ready("m")
        await asyncio.sleep(60.0)
        assert [entry.state for entry in keeper.index()] == ["UNAVAILABLE"]


async def test_files_that_change_while_they_are_read_are_read_again(tmp_path: Path) -> None:
    write(tmp_path, mark=1)
    settings(tmp_path, warm_up_s=3.0)
    async with keeping(tmp_path) as keeper:
        write(tmp_path, mark=2, takes_s=0.5)
        loading = asyncio.create_task(keeper.load("m"))
        await asyncio.sleep(1.0)
        write(tmp_path, mark=3, takes_s=0.25)  # while mark 2 is being warmed up
        await loading
        assert await ask(keeper) == 3


async def test_a_stop_in_the_middle_of_a_load_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path)
    settings(tmp_path, load="on-request", warm_up_s=1000.0)
    async with keeping(tmp_path) as keeper:
        waiting = asyncio.create_task(ask(keeper))
        await asyncio.sleep(1.0)
        waiting.cancel()
    assert keeper.registry.models() == []
    assert not keeper.is_ready


# ---- models of a configuration


def configured(*models: ModelConfig) -> Config:
    return Config(server=ServerConfig(drain_s=1.0), models=models)


def example(name: str, **more: object) -> ModelConfig:
    from onnxruntime.datasets import get_example

    return ModelConfig(name=name, target=get_example("sigmoid.onnx"), warm_up=False, **more)  # type: ignore[arg-type]


async def test_a_version_that_does_not_end_as_it_should_leaves_the_server_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forget(model: object) -> None:
        raise RuntimeError("cannot be forgotten")

    write(tmp_path)
    async with keeping(tmp_path) as keeper:
        monkeypatch.setattr(model_keeper, "forget_module", forget)
        write(tmp_path, mark=2)
        await keeper.load("m")
        assert await ask(keeper) == 2
        await asyncio.sleep(60.0)
        assert "did not end as it should" in caplog.text
        monkeypatch.undo()
        write(tmp_path, mark=3)
        await keeper.load("m")
        assert await ask(keeper) == 3


def test_a_module_is_forgotten_while_others_are_imported() -> None:
    """Threads that load other models change the modules that there are."""
    is_over = threading.Event()

    def import_others() -> None:
        names = [f"other_{number}" for number in range(64)]
        while not is_over.is_set():
            for name in names:
                sys.modules[name] = sys
            for name in names:
                del sys.modules[name]

    gone = type("Gone", (), {"__module__": "headway_models.gone"})()
    thread = threading.Thread(target=import_others)
    before = sys.getswitchinterval()
    thread.start()
    try:
        sys.setswitchinterval(1e-6)
        for _ in range(300):
            sys.modules["headway_models.gone"] = sys
            forget_module(gone)
            assert "headway_models.gone" not in sys.modules
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        thread.join()


async def test_one_of_several_that_fails_leaves_the_others(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    broken = ModelConfig(name="b", target="absent.onnx")
    async with serving(configured(example("a"), broken)) as registry:
        assert registry.find_ready("a").is_ready
        assert "there is no such file" in registry.index()[1].reason
        assert registry.names() == ["a"]
        assert [each.is_ready for each in registry.readiness()] == [True, False]
        assert not registry.is_ready  # the server was started with both
        assert registry.is_live


class Stuck(Served):
    """Its disk does not answer."""

    async def load(self) -> None:
        await asyncio.Event().wait()


async def test_a_load_that_hangs_does_not_keep_others_from_being_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    stuck, other = (
        ModelConfig(name=name, target="served_models:Upper", warm_up=False, load_timeout_s=500.0)
        for name in ("stuck", "other")
    )

    def make(config: ModelConfig, version: str, model: Any, origin: ModelOrigin) -> Served:
        kind = Stuck if config.name == "stuck" else Served
        return kind(config, model=model, version=version, origin=origin)

    before = sys.getswitchinterval()
    async with Keeper(configured(stuck, other), make) as keeper:
        starting = asyncio.create_task(keeper.wait_started())
        await asyncio.sleep(100.0)
        assert keeper.registry.find_ready("other").is_ready
        assert re.search(
            "stuck version 1 is still loading after .* s; other models may be", caplog.text
        )
        await asyncio.sleep(100.0)  # models that come and go meanwhile have their turns
        await keeper.reload("other")
        assert [each.is_ready for each in keeper.readiness()] == [True, False]
        assert not keeper.is_ready
        await starting
        assert "not ready after 500 s" in keeper.index()[1].reason
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize(
    ("target", "error"), [("absent.onnx", ConfigError), ("broken_model:Broken", ModelFailed)]
)
async def test_where_nothing_can_be_loaded_the_start_fails(
    target: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "broken_model.py").write_text(
        "import headway\nclass Broken(headway.Model[int, int]):\n"
        "    def load(self): raise OSError('torn')\n"
        "    def predict(self, items: list[int]) -> list[int]: return items\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match="model 'b'"):
        async with serving(configured(ModelConfig(name="b", target=target))):
            pass


async def test_a_name_is_in_the_configuration_or_in_the_repository(tmp_path: Path) -> None:
    write(tmp_path)
    server = ServerConfig(repository=str(tmp_path))
    models = (ModelConfig(name="m", target="absent.onnx"),)
    with pytest.raises(ConfigError, match="'m' is in the repository and in the configuration"):
        async with Keeper(Config(server=server, models=models), make_served):
            pass


async def test_another_configuration_is_followed() -> None:
    pytest.importorskip("onnxruntime")
    before = configured(example("same"), example("gone"), example("other"))
    after = configured(example("same"), example("other", max_queue=10), example("new"))
    async with Keeper(before, make_served) as keeper:
        await keeper.wait_started()
        same, other = (keeper.registry.find_ready(name) for name in ("same", "other"))
        await keeper.reload_configuration(after)
        for name in ("new", "other"):
            await keeper.load(name)
        assert keeper.registry.find_ready("same") is same
        assert keeper.registry.find_ready("other") is not other
        with pytest.raises(UnknownModel):
            keeper.registry.find_ready("gone")
        assert keeper.registry.names() == ["new", "other", "same"]


class Late(headway.Model[int, int]):
    async def predict(self, items: list[int]) -> list[int]:  # type: ignore[override]
        await asyncio.sleep(5.0)
        return items


FILE = """
import headway

class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() + {mark!r} for item in items]
"""


@pytest.mark.parametrize(("file", "name"), [("shouting.py", ""), ("shouting-2.py", ":Shout")])
@pytest.mark.parametrize("call", ["load", "reload"])
async def test_a_file_is_read_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, name: str, call: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / file
    path.write_text(FILE.format(mark="!"))
    models = [
        ModelConfig(name=each, target=f"{path}{name}", warm_up=False) for each in ("m", "other")
    ]
    async with Keeper(configured(*models), make_served) as keeper:
        await keeper.wait_started()

        async def say(model: str = "m") -> object:
            return await keeper.registry.get(model).predict("hi", ASK)

        assert await say() == "HI!"
        path.write_text(FILE.format(mark="?"))
        await getattr(keeper, call)("m")
        assert await say() == "HI?"
        assert await say("other") == "HI!"  # nobody asked for it

        path.write_text("class Shout(:\n")
        with pytest.raises(InvalidInput, match=rf"{file}, line 1: invalid syntax"):
            await getattr(keeper, call)("m")
        assert await say() == "HI?"

        path.write_text(FILE.format(mark="."))
        await getattr(keeper, call)("m")
        await getattr(keeper, call)("other")
        assert await say() == await say("other") == "HI."
        path.unlink()
        with pytest.raises(InvalidInput, match="there is no such file"):
            await getattr(keeper, call)("m")
        assert await say() == "HI."
    assert not [each for each in sys.modules if each.startswith("headway_edition_")]
    for each in ("shouting", "headway_file_shouting_2"):
        sys.modules.pop(each, None)


@pytest.mark.real_time
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_worker_that_starts_again_runs_the_edition_that_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"killed_{is_first}".lower()
    path = tmp_path / f"{name}.py"
    path.write_text(FILE.format(mark="!"))
    model = ModelConfig(name="m", target=str(path), warm_up=False, worker="process")
    async with Keeper(configured(model), make_served) as keeper:
        await keeper.wait_started()
        if not is_first:
            path.write_text(FILE.format(mark="?"))
            await keeper.load("m")
        served: Any = keeper.registry.get("m")
        said = await served.predict("hi", ASK)
        path.write_text(FILE.format(mark="."))  # nobody has asked for it
        [process] = served.batcher.worker_processes
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while (again := await _predicted(served)) is None:
                pass
        assert [each.pid for each in served.batcher.worker_processes] != [process.pid]
        assert said == again == ("HI!" if is_first else "HI?")
    sys.modules.pop(name, None)


async def _predicted(served: Any) -> object:
    """None: the worker is not there yet."""
    try:
        return await served.predict("hi", ASK)
    except Unavailable:
        await asyncio.sleep(0.05)
        return None


async def test_a_model_that_cannot_be_served_leaves_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "unserved.py"
    path.write_text(FILE.format(mark="!"))
    model = ModelConfig(name="m", target=str(path), warm_up=False)
    async with Keeper(configured(model), make_served) as keeper:
        await keeper.wait_started()
        path.write_text("import headway\nclass Shout(headway.Model[str, str]): pass\n")
        with pytest.raises(InvalidInput, match="does not define predict"):
            await keeper.load("m")
        assert not [each for each in sys.modules if each.startswith("headway_edition_")]
        assert await keeper.registry.get("m").predict("hi", ASK) == "HI!"
    sys.modules.pop("unserved", None)


async def test_a_model_that_goes_and_comes_back_answers_what_it_had_begun() -> None:
    model = ModelConfig(name="m", target=f"{__name__}:Late", warm_up=False)
    late = Config(server=ServerConfig(drain_s=60.0), models=(model,))
    async with Keeper(late, make_served) as keeper:
        await keeper.wait_started()
        asking = asyncio.create_task(keeper.registry.find_ready("m").predict(7, ASK))
        await asyncio.sleep(1.0)
        await keeper.reload_configuration(configured())
        await asyncio.sleep(1.0)
        assert keeper.registry.names() == []
        await keeper.reload_configuration(late)
        await asyncio.sleep(1.0)
        assert keeper.registry.find_ready("m").is_ready
        assert await asking == 7
        assert [entry.state for entry in keeper.index()] == ["READY"]


# ---- what changes while it runs


async def test_a_version_that_is_replaced_finishes_what_it_was_asked_however_long_that_takes(
    tmp_path: Path,
) -> None:
    write(tmp_path, mark=1, takes_s=20.0)
    settings(tmp_path, warm_up=False, max_batch_size=1)
    async with keeping(tmp_path, drain_s=30.0) as keeper:
        asked = [asyncio.create_task(ask(keeper)) for _ in range(4)]
        await asyncio.sleep(1.0)
        write(tmp_path, mark=2, takes_s=1.0)
        await keeper.load("m")
        assert await ask(keeper) == 2
        assert await asyncio.gather(*asked) == [1] * 4
    assert now() >= 80.0


async def test_weights_of_tenants_change_in_models_that_are_there(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "m" / "model.toml").write_text("warm_up = false\ntenants = {own = 5.0}")
    async with keeping(tmp_path) as keeper:
        keeper.weigh({"acme": 2.0, "own": 1.0})
        batcher = keeper.registry.get("m").batcher  # type: ignore[attr-defined]
        assert batcher.policy.tenant_weights == {"acme": 2.0, "own": 5.0}
        assert await ask(keeper) == 1


async def test_stopping_has_one_deadline_whatever_the_configuration_says(tmp_path: Path) -> None:
    write(tmp_path, takes_s=1e9)
    settings(tmp_path, warm_up=False)
    async with keeping(tmp_path, drain_s=1e6) as keeper:
        asking = asyncio.create_task(ask(keeper))
        await asyncio.sleep(1.0)
        keeper.end_by(now() + 2.0)
    assert now() == pytest.approx(3.0)
    with pytest.raises(Closed):
        await asking


async def test_a_version_that_is_loaded_while_the_one_before_is_asked_takes_over_its_times(
    tmp_path: Path,
) -> None:
    write(tmp_path, mark=1, takes_s=0.01)
    settings(tmp_path, max_batch_size=8)
    async with keeping(tmp_path) as keeper:
        first = keeper.registry.get("m")
        write(tmp_path, mark=2, takes_s=0.01)
        with first.held():
            await keeper.load("m")
        second = keeper.registry.get("m")
        assert second is not first
        assert second.costs is first.costs  # type: ignore[attr-defined]
        assert await ask(keeper) == 2
