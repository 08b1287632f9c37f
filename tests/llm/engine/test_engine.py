"""The engine against transformers, token by token, in every kind of company."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import CONFIGS, KERNEL_KINDS, VOCABULARY, Engine, build, kernels_of, reference
from transformers import AutoModelForCausalLM, Gemma2Config

from headway import machine
from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.engine import cache, starting
from headway.engine.cache import CacheShape, KvCache
from headway.engine.cpu.building import AVX512, Instructions, instruction_sets
from headway.engine.starting import EngineOptions, start
from headway.errors import ConfigError

BOUND = 1e-4
BOUNDS = {torch.float32: BOUND, torch.bfloat16: 0.5}
PREFIX = tuple((17 * each + 3) % VOCABULARY for each in range(40))
# Prompts of one token, of whole blocks, one more and one less, longer than a chunk, and with
# beginnings that others have too.
PROMPTS = [
    (5,),
    PREFIX[:4],
    PREFIX[:15],
    PREFIX[:17],
    (*PREFIX, 9, 8, 7),
    (*PREFIX, 9, 8, 6, 5, 4),
    tuple((31 * each + 1) % VOCABULARY for each in range(70)),
    tuple((17 * each + 3) % VOCABULARY for each in range(33)),
    tuple((13 * each + 5) % VOCABULARY for each in range(48)),
    PREFIX,
    PREFIX,
]
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "chunks": {"step_tokens": 19, "max_sequences": 12},
    "no chunks": {"chunking": False, "step_tokens": 40},
    "preemption": {"blocks": 26, "max_context": 96},
    "preemption and chunks": {"blocks": 26, "max_context": 96, "step_tokens": 17},
    "one at a time": {"max_sequences": 1},
    "large blocks": {"block_size": 32},
    "torch alone": {"kernels": None, "step_tokens": 19, "max_sequences": 12},
}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = build(kind, tmp_path_factory.mktemp(kind))
        return folders[kind]

    return folder


def check(
    folder: Path, prompt: tuple[int, ...], tokens: list[int], *, bound: float = BOUND
) -> None:
    """Along this text, each token is the likeliest to transformers, or as good as."""
    model = reference(folder)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    best = logits.max(-1).values
    chosen = logits[torch.arange(len(tokens)), torch.tensor(tokens)]
    assert float((best - chosen).max()) <= bound


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    ("kind", "use_transformers"),
    [*((kind, True) for kind in CONFIGS), *((kind, False) for kind in CONFIGS if kind != "gpt2")],
)
def test_greedy_text_is_transformers_own_in_any_company(
    folder_of: Callable[[str], Path], kind: str, use_transformers: bool, setting: str
) -> None:
    folder = folder_of(kind)
    engine = Engine(folder, use_transformers=use_transformers, **SETTINGS[setting])
    numbers = [
        engine.submit(prompt, max_tokens=4 + 3 * each) for each, prompt in enumerate(PROMPTS)
    ]
    engine.run()
    again = [engine.submit(prompt) for prompt in PROMPTS]  # now with all prefixes cached
    engine.run()
    for number, prompt in zip((*numbers, *again), PROMPTS * 2, strict=True):
        check(folder, prompt, engine.answers[number].tokens)
    if "preemption" in setting:
        assert engine.scheduler.preemptions
    assert engine.scheduler.blocks_used == 0


def test_a_cached_prefix_is_not_computed_again(folder_of: Callable[[str], Path]) -> None:
    engine = Engine(folder_of("llama"))
    for _ in range(2):
        engine.submit(PREFIX, max_tokens=1)
        engine.run()
    assert engine.computed == len(PREFIX) + 4


@pytest.mark.parametrize("kernels", ["auto", None])
@pytest.mark.parametrize(
    ("kind", "use_transformers"),
    [("qwen2", True), ("gpt2", True), ("qwen2", False), ("qwen3", False), ("llama-narrow", False)],
)
def test_in_bf16_each_token_is_nearly_the_best(
    folder_of: Callable[[str], Path], kind: str, use_transformers: bool, kernels: Any
) -> None:
    folder = folder_of(kind)
    options = {"use_transformers": use_transformers, "kernels": kernels, "step_tokens": 19}
    engine = Engine(folder, dtype=torch.bfloat16, **options)
    numbers = [engine.submit(prompt) for prompt in PROMPTS]
    engine.run()
    for number, prompt in zip(numbers, PROMPTS, strict=True):
        check(folder, prompt, engine.answers[number].tokens, bound=BOUNDS[torch.bfloat16])


@pytest.mark.parametrize("kind", KERNEL_KINDS)
def test_with_kernels_of_any_kind_each_logprob_is_the_same_in_any_company(
    folder_of: Callable[[str], Path], kind: tuple[Instructions, torch.dtype]
) -> None:
    """To the bit, in bf16 as in float32: alone, in steps of few tokens, and in those of many."""
    folder, dtype, asked = folder_of("qwen2"), kind[1], Sampling(temperature=0.0, logprobs=2)
    long = tuple((13 * each + 5) % VOCABULARY for each in range(150))
    prompts = [*PROMPTS, long, (*long[:140], 7)]
    alone = []
    for prompt in prompts:
        engine = Engine(folder, dtype=dtype, kernels=kernels_of(kind))
        number = engine.submit(prompt, asked)
        engine.run()
        alone.append(engine.answers[number].logprobs)
        check(folder, prompt, engine.answers[number].tokens, bound=BOUNDS[dtype])
    for step_tokens in (19, 900):
        engine = Engine(folder, dtype=dtype, kernels=kernels_of(kind), step_tokens=step_tokens)
        numbers = [engine.submit(prompt, asked) for prompt in prompts]
        engine.run()
        assert [engine.answers[number].logprobs for number in numbers] == alone


@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize("setting", ["roomy", "chunks", "preemption and chunks"])
@pytest.mark.parametrize("kind", KERNEL_KINDS)
def test_with_kernels_an_answer_is_the_same_to_the_bit_wherever_it_is_resumed(
    folder_of: Callable[[str], Path],
    kind: tuple[Instructions, torch.dtype],
    setting: str,
    is_rounded: bool,
) -> None:
    """What was said one token at a time is computed again as part of a prompt: in one step, in
    chunks, and again where it is preempted."""
    folder, asked = folder_of("qwen2"), Sampling(temperature=0.0, logprobs=2)
    options: Any = {"dtype": kind[1], "kernels": kernels_of(kind), "is_rounded": is_rounded}
    engine = Engine(folder, **options)
    numbers = [engine.submit(prompt, asked, max_tokens=24) for prompt in PROMPTS]
    engine.run()
    whole = [engine.answers[number] for number in numbers]
    preemptions = 0
    for cut in (1, 13, 23):
        engine = Engine(folder, **options, **SETTINGS[setting])
        for prompt, answer in zip(PROMPTS, whole, strict=True):
            told = tuple(answer.tokens[:cut])
            engine.submit(prompt, asked, resumed=told, max_tokens=24)
        engine.run()
        preemptions += engine.scheduler.preemptions
        for found, answer in zip(engine.answers.values(), whole, strict=True):
            assert found.tokens == answer.tokens
            assert found.logprobs == answer.logprobs[cut:]
    assert preemptions or "preemption" not in setting


@pytest.mark.parametrize("kind", KERNEL_KINDS)
def test_with_kernels_a_prefix_that_was_said_is_the_same_to_the_bit_as_one_that_is_read(
    folder_of: Callable[[str], Path], kind: tuple[Instructions, torch.dtype]
) -> None:
    """A second turn: with the first one's blocks cached, and in an engine that knows nothing."""
    folder, asked = folder_of("qwen2"), Sampling(temperature=0.0, logprobs=2)
    engine = Engine(folder, dtype=kind[1], kernels=kernels_of(kind))
    first = engine.submit(PREFIX, asked, max_tokens=120)
    engine.run()
    prompt = (*PREFIX, *engine.answers[first].tokens, 7, 8)
    found = []
    for each in (engine, Engine(folder, dtype=kind[1], kernels=kernels_of(kind), step_tokens=37)):
        before = each.computed
        number = each.submit(prompt, asked, max_tokens=40)
        each.run()
        found.append((each.answers[number].tokens, each.answers[number].logprobs))
        assert (each.computed - before < len(prompt)) == (each is engine)
    assert found[0] == found[1]


SAMPLINGS = [
    Sampling(temperature=0.9, seed=1),
    Sampling(temperature=1.3, top_p=0.8, seed=2),
    Sampling(temperature=1.0, top_k=5, seed=3),
    Sampling(temperature=1.0, min_p=0.1, seed=4),
    Sampling(temperature=0.8, presence_penalty=1.0, frequency_penalty=0.5, seed=5),
    Sampling(temperature=0.7, repetition_penalty=1.3, top_p=0.9, top_k=20, seed=6),
    Sampling(temperature=0.0, logit_bias={7: 3.0, 11: -100.0}),
]


@pytest.mark.parametrize("setting", ["chunks", "preemption"])
def test_a_seed_gives_the_same_text_in_any_company(
    folder_of: Callable[[str], Path], setting: str
) -> None:
    folder = folder_of("llama")
    alone = []
    for sampling in SAMPLINGS:
        engine = Engine(folder)
        number = engine.submit(PREFIX, sampling, max_tokens=20)
        engine.run()
        alone.append(engine.answers[number].tokens)
    engine = Engine(folder, **SETTINGS[setting])
    numbers = [engine.submit(PREFIX, sampling, max_tokens=20) for sampling in SAMPLINGS]
    for prompt in PROMPTS[:4]:
        engine.submit(prompt, Sampling(seed=9), max_tokens=20)
    engine.run()
    assert [engine.answers[number].tokens for number in numbers] == alone
    assert len({tuple(each) for each in alone}) == len(alone)


@pytest.mark.parametrize("setting", ["roomy", "chunks", "preemption"])
def test_a_seed_draws_the_same_wherever_the_answer_is_resumed(
    folder_of: Callable[[str], Path], setting: str
) -> None:
    """After every one of its tokens, all of them side by side: a draw depends on the seed and the
    position, not on the steps before it or on who is beside it."""
    folder = folder_of("llama")
    engine = Engine(folder)
    numbers = [engine.submit(PREFIX, sampling, max_tokens=20) for sampling in SAMPLINGS]
    engine.run()
    whole = [engine.answers[number].tokens for number in numbers]
    engine = Engine(folder, **SETTINGS[setting])
    resumed = [
        (engine.submit(PREFIX, sampling, resumed=tuple(tokens[:cut]), max_tokens=20), tokens)
        for sampling, tokens in zip(SAMPLINGS, whole, strict=True)
        for cut in range(len(tokens))
    ]
    engine.run()
    assert all(engine.answers[number].tokens == tokens for number, tokens in resumed)


def test_logprobs_are_those_of_transformers(folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("qwen3")
    engine = Engine(folder, step_tokens=17)
    number = engine.submit(PREFIX, Sampling(temperature=1.0, seed=3, logprobs=4), max_tokens=10)
    engine.submit(PROMPTS[-3])
    engine.run()
    answer = engine.answers[number]
    with torch.inference_mode():
        logits = reference(folder)(torch.tensor([[*PREFIX, *answer.tokens]])).logits[0]
    lines = logits[len(PREFIX) - 1 : -1].log_softmax(-1)
    for line, token, logprobs in zip(lines, answer.tokens, answer.logprobs, strict=True):
        assert logprobs is not None
        assert logprobs.chosen == pytest.approx(float(line[token]), abs=1e-3)
        values, tokens = line.topk(4)
        assert [each for each, _ in logprobs.top] == tokens.tolist()
        assert [each for _, each in logprobs.top] == pytest.approx(values.tolist(), abs=1e-3)


def test_a_cancelled_sequence_does_not_touch_its_neighbours(
    folder_of: Callable[[str], Path],
) -> None:
    folder = folder_of("llama")
    engine = Engine(folder, step_tokens=19, max_sequences=12)
    numbers = [engine.submit(prompt) for prompt in PROMPTS]
    for _ in range(6):
        engine.step()
    for number in numbers[::2]:
        engine.scheduler.cancel(number)
    engine.run()
    for number, prompt in list(zip(numbers, PROMPTS, strict=True))[1::2]:
        assert len(engine.answers[number].tokens) == 12
        check(folder, prompt, engine.answers[number].tokens)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_programs_own_default_dtype_changes_no_answer(
    folder_of: Callable[[str], Path], has_kernels: bool, default: torch.dtype
) -> None:
    bias = {each: each / 97 for each in range(VOCABULARY)}
    options = [
        Sampling(temperature=0.0),
        Sampling(temperature=0.7, seed=3, frequency_penalty=0.3, logit_bias=bias),
    ]

    def answers() -> list[list[int]]:
        engine = Engine(folder_of("qwen2"), kernels="auto" if has_kernels else None)
        numbers = [engine.submit((*PREFIX, 9), each, max_tokens=30) for each in options]
        engine.run()
        return [engine.answers[each].tokens for each in numbers]

    expected = answers()
    torch.set_default_dtype(default)
    try:
        assert answers() == expected
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cache_is_zeros_that_begin_at_a_line_of_the_processors(dtype: torch.dtype) -> None:
    limits = EngineLimits(blocks=3, block_size=16, max_context=48, max_sequences=2)
    kept = KvCache(CacheShape(layers=2, kv_heads=1, head_size=8), limits, dtype=dtype, device="cpu")
    for pages in (*kept.keys, *kept.values):
        assert pages.data_ptr() % 64 == 0
        assert pages.shape == (3, 16, 1, 8)
        assert torch.equal(pages, torch.zeros(pages.shape, dtype=dtype))
    kept.keys[0].fill_(1.0)
    assert not kept.keys[1].any()
    child = os.fork()
    if not child:
        kept.keys[0].fill_(2.0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(kept.keys[0], torch.ones(kept.keys[0].shape, dtype=dtype))


@pytest.mark.skipif(AVX512 not in instruction_sets(), reason="this processor has no AVX-512")
@pytest.mark.parametrize(("kind", "lanes"), [("qwen2", 16), ("llama-narrow", 8)])
def test_rows_too_narrow_for_avx512_are_computed_with_avx2(
    folder_of: Callable[[str], Path], kind: str, lanes: int
) -> None:
    for dtype in ("float32", "bfloat16"):
        options = EngineOptions(device="cpu", dtype=dtype, kv_cache_gib=0.01)
        runner: Any = start(folder_of(kind), options)
        assert runner._kernels.is_whole(8) == (lanes == 8)


def test_a_model_that_would_be_computed_wrongly_is_refused(tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8}
    config = Gemma2Config(
        **sizes, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="'softcap': a cap on attention's logits"):
        Engine(tmp_path)


def test_a_cache_smaller_than_the_context_bounds_it_and_says_so(
    folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    small = EngineOptions(device="cpu", dtype="float32", kv_cache_gib=0.00005)
    runner = start(folder_of("llama"), small)
    room = runner.limits.blocks * runner.limits.block_size
    assert runner.limits.max_context == room < 256
    assert f"the KV cache holds {room} tokens" in caplog.text


def test_a_cache_that_no_memory_can_hold_is_refused_by_its_setting(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(cache.mmap, "mmap", no_memory)
    with pytest.raises(ConfigError, match="no memory for a KV cache") as caught:
        start(folder_of("llama"), EngineOptions(device="cpu", kv_cache_gib=0.01))
    assert caught.value.field == "kv_cache_gib"


def test_what_is_cut_or_cannot_be_had_is_warned_of(
    folder_of: Callable[[str], Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "free_host_bytes", lambda: 1 << 20)
    start(folder_of("llama"), EngineOptions(device="cpu", max_context=9999, kv_cache_gib=0.01))
    assert "max_context is 9999; the model's own, 256, is used" in caplog.text
    assert "the KV cache may grow to" in caplog.text


def test_an_engine_takes_no_more_than_its_container_has(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama")
    threads = torch.get_num_threads()
    roomy = start(folder, EngineOptions(device="cpu")).limits.blocks
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text("4000000\n")
    (tmp_path / "memory.current").write_text("0\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    try:
        runner = start(folder, EngineOptions(device="cpu"))
        assert torch.get_num_threads() == 1
        start(folder, EngineOptions(device="cpu", threads=2))
        assert torch.get_num_threads() == 2  # who asks for a number gets it
    finally:
        torch.set_num_threads(threads)
    assert 0 < runner.limits.blocks < roomy
