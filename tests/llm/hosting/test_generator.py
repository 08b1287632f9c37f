"""`headway.Generator` on a two-layer model: text in, text out, many at once."""

import asyncio
import itertools
import json
import math
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from models import reference

import headway
from headway.core.generation.options import generation_options
from headway.engine.cpu.runner import CpuRunner
from headway.errors import (
    Closed,
    ConfigError,
    DeadlineExceeded,
    InputTooLarge,
    InvalidInput,
    ModelFailed,
)

pytestmark = pytest.mark.real_time
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def generator(folder: Path, **options: Any) -> headway.Generator:
    return headway.Generator(str(folder), threads=1, kv_cache_gib=0.01, **options)


async def test_a_stream_is_the_answer_in_pieces(folder: Path) -> None:
    async with generator(folder) as model:
        answer = await model.generate("Hello", max_tokens=12, **GREEDY)
        pieces = [each async for each in model.stream("Hello", max_tokens=12, **GREEDY)]
    assert "".join(each.text for each in pieces) == answer.text
    assert tuple(token for each in pieces for token in each.tokens) == answer.tokens
    assert [each.finish_reason for each in pieces] == [None] * 11 + ["length"]
    assert answer.finish_reason == "length"
    assert answer.prompt_tokens == 5


async def test_the_answer_is_transformers_own(folder: Path) -> None:
    ids = [9, 40, 77]
    async with generator(folder, dtype="float32") as model:
        answer = await model.generate(ids, max_tokens=8, **GREEDY)
    with torch.inference_mode():
        logits = reference(folder)(torch.tensor([[*ids, *answer.tokens]])).logits[0]
    assert tuple(logits.argmax(-1).tolist()[2:-1]) == answer.tokens


async def test_many_prompts_are_answered_in_their_order(folder: Path) -> None:
    prompts = ["a", "bc" * 20, "def", [1, 2, 3]]
    async with generator(folder) as model:
        together = await model.many(prompts, max_tokens=9, **GREEDY)
        alone = [await model.generate(each, max_tokens=9, **GREEDY) for each in prompts]
    assert [each.tokens for each in together] == [each.tokens for each in alone]


async def test_a_seed_repeats_an_answer(folder: Path) -> None:
    async with generator(folder) as model:
        answers = [
            await model.generate("x", max_tokens=12, ignore_eos=True, seed=seed)
            for seed in (5, 5, 6)
        ]
    assert answers[0].tokens == answers[1].tokens != answers[2].tokens


async def test_a_stop_string_ends_the_answer_before_it(folder: Path) -> None:
    async with generator(folder) as model:
        whole = await model.generate("Hello", max_tokens=40, **GREEDY)
        stop = whole.text[10:14]
        cut = await model.generate("Hello", max_tokens=40, stop=[stop], **GREEDY)
    assert cut.text == whole.text[: whole.text.find(stop)]
    assert cut.finish_reason == "stop"
    assert len(cut.tokens) < 40


async def test_whoever_leaves_gives_its_blocks_back(folder: Path) -> None:
    async with generator(folder) as model:
        stream = model.stream("Hello", max_tokens=200, **GREEDY)
        await anext(stream)
        assert model.load.blocks_used
        await stream.aclose()
        await model.generate("other", max_tokens=2, **GREEDY)
        assert model.load.blocks_used == 0
        assert model.load.running == 0


async def test_what_cannot_be_done_is_refused_by_name(folder: Path) -> None:
    async with generator(folder) as model:
        with pytest.raises(InvalidInput, match="temprature"):
            await model.generate("x", temprature=1)
        with pytest.raises(InvalidInput, match="top_p"):
            await model.generate("x", top_p=2.0)
        with pytest.raises(InvalidInput, match="max_tokens"):
            await model.generate("x", max_tokens=-3)
        with pytest.raises(InvalidInput, match="max_tokens"):
            await model.generate("x", max_tokens=0)
        with pytest.raises(InvalidInput, match="messages"):
            await model.generate([])
        with pytest.raises(InvalidInput, match="prompt: a text, token ids or messages"):
            await model.generate(3)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="role"):
            await model.generate([{"content": "x"}])
        with pytest.raises(InvalidInput, match="token 100000"):
            await model.generate([5, 100_000])
        with pytest.raises(InvalidInput, match="stop"):
            await model.generate("x", stop=["a" * 10_000])
        with pytest.raises(InputTooLarge, match="there is room for 256"):
            await model.generate("x" * 300)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_context", each) for each in (0, -4, "x", True)),
        *(("max_sequences", each) for each in (0, "x")),
        *(("step_tokens", 0), ("threads", 0), ("max_adapter_rank", 0)),
        *(("kv_cache_gib", each) for each in (-1, 0, "x", math.inf)),
    ],
)
async def test_a_setting_that_cannot_be_is_refused_by_name(
    folder: Path, name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match="must be") as caught:
        async with headway.Generator(str(folder), **{name: value}):
            pass
    assert caught.value.field == name


async def test_an_answer_that_is_late_ends_with_its_deadline(folder: Path) -> None:
    async with generator(folder) as model:
        with pytest.raises(DeadlineExceeded):
            await model.generate("x", max_tokens=240, deadline_ms=5, **GREEDY)
        assert (await model.generate("x", max_tokens=2, **GREEDY)).tokens


async def test_stopping_leaves_no_stream_waiting(folder: Path) -> None:
    async with generator(folder) as model:
        task = asyncio.create_task(model.generate("x", max_tokens=250, **GREEDY))
        await model.generate("y", max_tokens=2, **GREEDY)  # after which the other is running
    with pytest.raises(Closed):
        await task
    with pytest.raises(Closed):
        await model.generate("x", **GREEDY)


async def test_a_slow_reader_gets_what_came_before_the_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, steps = CpuRunner.run, itertools.count(1)
    has_failed = threading.Event()

    def broken(self: CpuRunner, step: Any) -> Any:
        if next(steps) == 6:
            has_failed.set()
            raise RuntimeError("out of luck")
        return run(self, step)

    monkeypatch.setattr(CpuRunner, "run", broken)
    tokens: list[int] = []
    async with generator(folder) as model:
        stream = model.stream("x", max_tokens=20, **GREEDY)
        tokens += (await anext(stream)).tokens
        await asyncio.to_thread(has_failed.wait)
        await asyncio.to_thread(model.tokens_of, "y")  # after which what has come was delivered
        try:
            async for piece in stream:
                tokens += piece.tokens
        except ModelFailed as error:
            assert "out of luck" in str(error)  # noqa: PT017  it is what ends the loop
    assert len(tokens) == 5


async def test_every_event_loop_reads_its_own_answers(folder: Path) -> None:
    async with generator(folder) as model:
        expected = await model.generate("x", max_tokens=40, **GREEDY)

        def elsewhere() -> headway.generator.Answer:
            return asyncio.run(model.generate("x", max_tokens=40, **GREEDY))

        here = model.generate("x", max_tokens=40, **GREEDY)
        answers = await asyncio.gather(here, *[asyncio.to_thread(elsewhere) for _ in range(3)])
    assert {each.tokens for each in answers} == {expected.tokens}


async def test_a_child_of_fork_is_told_that_the_generator_is_its_parents(folder: Path) -> None:
    async with generator(folder) as model:
        expected = await model.generate("x", max_tokens=2, **GREEDY)
        child = os.fork()
        if not child:
            _end_child(model)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        again = await model.generate("x", max_tokens=2, **GREEDY)
        assert again.tokens == expected.tokens


def _end_child(model: headway.Generator) -> NoReturn:
    """With 0 if it is refused; a child that hangs is ended by its alarm."""
    signal.alarm(30)
    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(model.generate("x", max_tokens=2, **GREEDY))
    except Closed as error:
        os._exit(0 if "before this process was forked" in str(error) else 1)
    finally:
        os._exit(2)


async def test_a_step_that_fails_is_its_own_callers_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = CpuRunner.run
    calls = iter(range(100))

    def broken(self: CpuRunner, step: Any) -> Any:
        if next(calls) == 3:
            raise RuntimeError("out of luck")
        return run(self, step)

    async with generator(folder) as model:
        before = await model.generate("x", max_tokens=2, **GREEDY)
        monkeypatch.setattr(CpuRunner, "run", broken)
        with pytest.raises(ModelFailed, match="out of luck"):
            await model.generate("x", max_tokens=20, **GREEDY)
        again = await model.generate("x", max_tokens=2, **GREEDY)
        assert again.tokens == before.tokens
        assert model.load.blocks_used == 0


async def test_callers_are_told_whatever_the_engine_dies_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """As libraries written in Rust raise: no `except Exception` sees it."""

    def panicking(self: CpuRunner, step: Any) -> Any:
        raise Panic("out of range")

    async with generator(folder) as model:
        monkeypatch.setattr(CpuRunner, "run", panicking)
        with pytest.raises(Closed, match="out of range"):
            async with asyncio.timeout(60):
                await model.generate("x", max_tokens=20, **GREEDY)
        with pytest.raises(Closed):
            await model.generate("x", max_tokens=20, **GREEDY)


async def test_what_cannot_be_loaded_is_told_to_whoever_starts_it(tmp_path: Path) -> None:
    with pytest.raises(headway.ConfigError, match=r"config\.json"):
        async with headway.Generator(str(tmp_path)):
            pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", 5),
        ("stop", ["a"] * 17),
        ("ignore_eos", "x"),
        ("min_tokens", 9),
        ("grammar", "root ::= 'a'"),
        ("stop_token_ids", "x"),
        ("cache_salt", 5),
        ("temperature", "hot"),
    ],
)
async def test_an_option_is_refused_in_the_words_of_the_server(
    folder: Path, name: str, value: Any
) -> None:
    options = {"max_tokens": 3, name: value}
    with pytest.raises(InvalidInput, match=f"^{name}: ") as served:
        generation_options(options)
    async with generator(folder) as model:
        with pytest.raises(InvalidInput) as caught:
            await model.generate("x", **options)
    assert str(caught.value) == str(served.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("priority", "urgent"), ("tenant", 5), ("deadline_ms", "soon"), ("stop_token_ids", [10**6])],
)
async def test_an_option_that_is_not_the_models_is_checked_as_well(
    folder: Path, name: str, value: Any
) -> None:
    async with generator(folder) as model:
        with pytest.raises(InvalidInput, match=name):
            await model.generate("x", **{name: value})


async def test_a_stop_token_ends_the_answer(folder: Path) -> None:
    async with generator(folder) as model:
        whole = await model.generate("Hello", max_tokens=12, **GREEDY)
        ends = [whole.tokens[4]]
        cut = await model.generate("Hello", max_tokens=12, stop_token_ids=ends, **GREEDY)
    assert cut.finish_reason == "stop"
    assert cut.tokens == whole.tokens[: whole.tokens.index(ends[0]) + 1]


async def test_prompts_of_different_salts_share_no_cache(folder: Path) -> None:
    prompt = [7] * 100
    async with generator(folder) as model:
        cached = [
            (await model.generate(prompt, max_tokens=1, cache_salt=salt, **GREEDY)).cached_tokens
            for salt in ("a", "a", "b")
        ]
    assert cached[0] == cached[2] == 0 < cached[1]
    async with generator(folder, share_prefixes=False) as model:
        for _ in range(2):
            assert (await model.generate(prompt, max_tokens=1, **GREEDY)).cached_tokens == 0


async def test_options_that_are_not_set_are_what_the_models_makers_recommend(
    folder: Path, tmp_path: Path
) -> None:
    careful = shutil.copytree(folder, tmp_path / "careful")
    recommended = {"temperature": 0.0, "repetition_penalty": 1.5}
    (careful / "generation_config.json").write_text(json.dumps(recommended))
    async with generator(careful) as model:
        options = {"max_tokens": 12, "ignore_eos": True}
        said = await model.generate("Hello", **options, **recommended)
        assert (await model.generate("Hello", **options)).tokens == said.tokens


async def test_a_prompt_that_mixes_messages_and_tokens_is_refused(folder: Path) -> None:
    async with generator(folder) as model:
        with pytest.raises(InvalidInput, match=r"prompt: .* is not a token id"):
            await model.generate([{"role": "user", "content": "x"}, 5])  # type: ignore[list-item]
