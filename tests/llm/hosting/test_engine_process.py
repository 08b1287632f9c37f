"""The engine in a process of its own: killed, hung or out of memory, it comes back, and its answers
go on where they were."""

import asyncio
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fragile_engine import FragileModel, HugeModel, MortalModel
from models import build
from serving import MOST_S, Serving, serving
from test_serving import used, wait_until

from headway.config import ModelConfig
from headway.core.lifecycle.health import Health
from headway.errors import ConfigError, NotReady, Poison
from headway.hosting.generation.pieces import Generation
from headway.hosting.generation.served import ServedGenerator
from headway.hosting.registry import Ask
from headway.models.chat.model import LanguageModel

pytestmark = pytest.mark.real_time
PARAMETERS = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
# Few candidates: where many are about as likely, the last digit of a sum decides between two.
DRAWN = {**PARAMETERS, "temperature": 0.9, "top_k": 3, "seed": 11}
PROMPTS = ["ab", "hello", "xyz" * 9, "The quick brown fox", "1", "zz top"]


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    """For engines that leave notes."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


def engine_pid(served: Serving) -> int | None:
    return served.model.workers()[0].pid


def restarts(served: Serving) -> int:
    return served.model.workers()[0].restarts


async def text_of(served: Serving, prompt: str, told: Callable[[str], None] = str) -> str:
    texts = []
    stream: AsyncIterator[str] = served.model.stream(
        prompt, Ask(parameters=dict(DRAWN if prompt == "1" else PARAMETERS))
    )
    async for text in stream:
        texts.append(text)
        told(prompt)
    return "".join(texts)


async def texts_of(
    served: Serving,
    disturb: Callable[[], None] = lambda: None,
    prompts: list[str] = PROMPTS,
) -> list[Any]:
    """All at once. `disturb` is called when each has shown something."""
    shown: set[str] = set()

    def told(prompt: str) -> None:
        if prompt in shown:
            return
        shown.add(prompt)
        if len(shown) == len(prompts):
            disturb()

    asked = [text_of(served, prompt, told) for prompt in prompts]
    return list(await asyncio.gather(*asked, return_exceptions=True))


def test_answers_go_on_after_the_engine_was_killed(served: Serving) -> None:
    """Without a token lost or repeated, the likeliest ones or drawn by a seed."""
    whole = served.run(lambda: texts_of(served))
    before, first = restarts(served), engine_pid(served)
    assert first is not None
    assert first != os.getpid()
    disturbed = served.run(lambda: texts_of(served, lambda: os.kill(first, signal.SIGKILL)))
    assert disturbed == whole
    assert restarts(served) == before + 1
    assert engine_pid(served) != first
    wait_until(lambda: used(served) == 0)


def test_in_bf16_answers_go_on_as_if_the_engine_had_not_been_killed(tmp_path: Path) -> None:
    """Which is the default where the processor multiplies it. In int8, too; and where the cache is
    too small for all of them, so that some are preempted besides."""
    folder = build("qwen2", tmp_path)
    for settings in ({}, {"quantization": "int8"}, {"kv_cache_gib": 0.00022}):
        with serving(folder, **{"dtype": "bfloat16", **settings}) as served:
            whole = served.run(lambda: texts_of(served))
            for _ in range(2):
                pid = engine_pid(served)
                assert pid is not None
                kill = functools.partial(os.kill, pid, signal.SIGKILL)
                assert served.run(functools.partial(texts_of, served, kill)) == whole


def test_an_engine_that_is_stopped_by_a_signal_is_replaced(served: Serving) -> None:
    whole = served.run(lambda: texts_of(served))
    first = engine_pid(served)
    assert first is not None
    assert served.run(lambda: texts_of(served, lambda: os.kill(first, signal.SIGSTOP))) == whole
    assert "stopped by a signal" in served.model.workers()[0].last_error


def test_killed_again_and_again_every_stream_ends_once(served: Serving) -> None:
    """Through HTTP: each client sees one whole answer."""
    body = {"text_input": "ab", **PARAMETERS, "temperature": 0}
    route = f"{served.url}/v2/models/tiny/generate"
    whole = httpx.post(route, json=body).json()["text_output"]
    for _ in range(2):
        with httpx.stream("POST", f"{route}_stream", json=body, timeout=MOST_S) as answer:
            lines = answer.iter_lines()
            texts = [next(lines)]
            pid = engine_pid(served)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            texts += lines
        shown = [json.loads(each[6:]) for each in texts if each.startswith("data: ")]
        assert "".join(each["text_output"] for each in shown) == whole


def test_it_is_not_ready_while_its_engine_is_away(served: Serving) -> None:
    route = f"{served.url}/v2/health"
    assert httpx.get(f"{route}/ready").status_code == 200
    pid = engine_pid(served)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not served.model.is_ready)
    assert served.model.health is not Health.DEAD
    assert httpx.get(f"{route}/live").status_code == 200
    assert served.model.unready == "its engine is restarting"
    wait_until(lambda: served.model.is_ready)
    assert httpx.get(f"{route}/ready").status_code == 200


def test_who_leaves_while_the_engine_is_away_is_forgotten(served: Serving) -> None:
    async def leave() -> None:
        stream = await served.model.open_stream("ab", Ask(parameters=dict(PARAMETERS)))
        await anext(stream)
        pid = engine_pid(served)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: not served.model.is_ready)
        stream.close()
        assert not served.model.is_busy

    served.run(leave)
    wait_until(lambda: served.model.is_ready)
    assert used(served) == 0


def test_faults_of_the_engine_itself(own_folder: Path) -> None:
    """A prompt that takes it down, a step that hangs, a step without memory."""
    with serving(own_folder, FragileModel, execute_timeout_ms=3000.0) as served:
        alone = served.run(lambda: text_of(served, "ab"))

        both = ["a#", "ab"]
        once = served.run(lambda: texts_of(served, prompts=both))
        assert (own_folder / "forgot").exists()
        assert once == served.run(lambda: texts_of(served, prompts=both))
        assert restarts(served) == 0

        both = ["hang?", "ab"]
        once = served.run(lambda: texts_of(served, prompts=both))
        assert "did not answer within 3 s" in served.model.workers()[0].last_error
        assert once == served.run(lambda: texts_of(served, prompts=both))

        answers = served.run(lambda: texts_of(served, prompts=["ab", "kill!"]))
        assert answers[0] == alone
        assert isinstance(answers[-1], Poison)
        assert used(served) == 0


def test_an_engine_that_cannot_come_back_is_given_up(own_folder: Path) -> None:
    with serving(own_folder, MortalModel, max_restarts=1) as served:
        pid = engine_pid(served)
        assert pid is not None
        answers = served.run(lambda: texts_of(served, lambda: os.kill(pid, signal.SIGKILL)))
        assert {type(each) for each in answers} == {NotReady}
        assert "the weights are gone" in str(answers[0])
        assert served.model.health is Health.DEAD
        assert httpx.get(f"{served.url}/v2/health/live").status_code == 503
        with pytest.raises(NotReady):
            served.run(lambda: text_of(served, "ab"))


async def test_a_load_that_fails_says_why(folder: Path) -> None:
    config = ModelConfig(name="tiny", target=str(folder), kv_cache_gib=1e-7)
    model = ServedGenerator(config, LanguageModel(str(folder), threads=1))
    with pytest.raises(ConfigError, match=r"kv_cache_gib: .*too little for one block"):
        await model.load()
    await model.close(drain_s=1)


@pytest.mark.parametrize("placement", ["process", "thread"])
async def test_a_load_without_memory_names_the_setting(folder: Path, placement: Any) -> None:
    config = ModelConfig(name="tiny", target=str(folder), kv_cache_gib=0.01)
    model = ServedGenerator(config, HugeModel(str(folder)))
    model.placement = dataclasses.replace(model.placement, kind=placement)
    with pytest.raises(ConfigError, match=r"^kv_cache_gib: there is too little memory"):
        await model.load()
    await model.close(drain_s=0)


def test_a_method_of_the_engine_is_called_between_steps(served: Serving) -> None:
    async def call() -> tuple[Any, Any]:
        engine: Any = served.model._engine
        known = await engine.call("drop", 10**6)
        failed = await asyncio.gather(engine.call("add"), return_exceptions=True)
        return known, failed[0]

    known, failed = served.run(call)
    assert known is None
    assert isinstance(failed, TypeError)


def test_in_a_thread_it_says_the_same(served: Serving, folder: Path) -> None:
    whole = served.run(lambda: texts_of(served))
    with serving(folder, worker="thread") as threaded:
        assert engine_pid(threaded) == os.getpid()
        assert threaded.run(lambda: texts_of(threaded)) == whole
        threaded.model.weigh({"acme": 2.0})
    config = ModelConfig(name="tiny", target=str(folder), worker="inline")
    with pytest.raises(ConfigError, match=r"^worker: "):
        ServedGenerator(config, LanguageModel(str(folder)))


def test_answers_of_a_given_form_are_resumed_in_their_form(served: Serving) -> None:
    from headway.core.generation.options import generation_options
    from headway.models.chat.grammars import grammar_of_regex

    grammar = grammar_of_regex("(ab|cd)+x", "regex")
    options = generation_options({"max_tokens": 150, "temperature": 1, "seed": 5}, grammar=grammar)

    async def ask(pid: int | None) -> str:
        stream = await served.model.open_stream(Generation(((7, 8),), options), Ask())
        texts = []
        async for piece in stream:
            texts.append(piece.text)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                pid = None
        return "".join(texts)

    whole = served.run(lambda: ask(None))
    assert set(whole) <= set("abcdx")
    assert served.run(lambda: ask(engine_pid(served))) == whole


FRONT = """
import asyncio, json, sys, urllib.request
import msgspec
from headway.config import Config, ModelConfig, ServerConfig
from headway.wire.http1.server import HttpServer
from headway.server.run import make_app, serving

async def main(folder):
    settings = {"name": "tiny", "target": folder, "kv_cache_gib": 0.01, "options": {"threads": 1}}
    model = msgspec.convert(settings, ModelConfig)
    server = ServerConfig(port=0)
    async with serving(Config(server=server, models=(model,))) as registry:
        async with HttpServer(make_app(registry, server), server) as http:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
            body |= {"max_tokens": 5, "logprobs": True, "response_format": {"type": "json_object"}}
            data, kind = json.dumps(body).encode(), {"content-type": "application/json"}
            request = urllib.request.Request(http.url + "/v1/chat/completions", data, kind)
            ask = lambda: json.load(urllib.request.urlopen(request))
            answer = await asyncio.to_thread(ask)
            assert answer["choices"][0]["finish_reason"] in ("stop", "length"), answer
    print(sorted({"torch", "transformers"} & set(sys.modules)))

asyncio.run(main(sys.argv[1]))
"""


def test_the_servers_process_never_imports_torch(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRONT, str(folder)],
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_errors_keep_their_fields_between_processes(served: Serving) -> None:
    body = {"text_input": "ab", "max_tokens": 10**6}
    answer = httpx.post(f"{served.url}/v2/models/tiny/generate", json=body)
    assert answer.status_code == 413
    assert "256" in answer.json()["error"]


def test_a_file_of_prompts_is_mapped_and_gone_on_with(folder: Path, tmp_path: Path) -> None:
    lines = [{"prompt": "ab", **PARAMETERS, "max_tokens": 9}, {"prompt": "x", "colour": 1}, "hello"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    command = [sys.executable, "-m", "headway", "map", str(folder), "in.jsonl", "out.jsonl"]
    command += ["--kv-cache-gib", "0.01", "--dtype", "float32", "--json"]

    def run() -> tuple[int, Any]:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=MOST_S, check=False
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    code, summary = run()
    assert (code, summary["lines"], summary["failed"]) == (1, 3, 1)
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["line"] for each in answers] == [1, 2, 3]
    assert "colour" in answers[1]["error"]["message"]
    assert isinstance(answers[2]["result"], str)
    assert run()[1]["resumed_after_line"] == 3
