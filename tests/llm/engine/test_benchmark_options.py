"""What benchmarks of language models ask for: random weights, prompts in one step. And the steps
that warm a GPU's engine up, which any engine can run."""

import json
from pathlib import Path

import pytest
import torch
from models import CONFIGS, Engine, build, save_tokenizer

from headway.config import Config, ModelConfig
from headway.core.generation.limits import EngineLimits
from headway.engine.architecture import LlamaSpec
from headway.engine.gpu.steps.warming import mixed_steps
from headway.engine.starting import EngineOptions, start
from headway.engine.weights import random_tensors, read_tensors
from headway.errors import ConfigError
from headway.files import read_json
from headway.hosting.registry import Ask
from headway.server.run import serving

PROMPT = tuple((13 * each + 5) % 250 for each in range(50))


def shape_only(kind: str, folder: Path) -> Path:
    """A folder without weights."""
    config = CONFIGS[kind]().to_dict()
    name = "LlamaForCausalLM" if kind == "llama" else "GPT2LMHeadModel"
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    save_tokenizer(folder)
    return folder


@pytest.mark.parametrize("kind", ["llama", "llama-tied-rope3", "qwen2", "qwen3"])
def test_random_weights_have_the_names_and_shapes_of_saved_ones(kind: str, tmp_path: Path) -> None:
    build(kind, tmp_path)
    spec = LlamaSpec.of(read_json(tmp_path / "config.json"))
    saved = {name: tensor.shape for name, tensor in read_tensors(tmp_path)}
    drawn = dict(random_tensors(spec, dtype=torch.float32, device="cpu"))
    assert {name: tensor.shape for name, tensor in drawn.items()} == saved


@pytest.mark.real_time
async def test_a_folder_without_weights_is_served_with_random_ones(tmp_path: Path) -> None:
    folder = shape_only("llama", tmp_path)
    model = ModelConfig(
        name="tiny",
        target=str(folder),
        worker="thread",
        kv_cache_gib=0.01,
        options={"random_weights": True, "threads": 1},
    )
    async with serving(Config(models=(model,))) as registry:
        parameters = {"max_tokens": 7, "temperature": 0, "ignore_eos": True}
        found = await registry.find_ready("tiny").predict("ab", Ask(parameters=parameters))
        assert isinstance(found, str)


def test_random_weights_are_for_models_whose_shapes_are_known(tmp_path: Path) -> None:
    folder = shape_only("gpt2", tmp_path)
    with pytest.raises(ConfigError, match="random_weights: is for models of Llama's kind"):
        start(folder, EngineOptions(random_weights=True, kv_cache_gib=0.01, threads=1))


def test_without_chunks_a_prompt_is_computed_in_one_step(tmp_path: Path) -> None:
    folder = shape_only("llama", tmp_path)
    options = {"random_weights": True, "kv_cache_gib": 0.01, "threads": 1}
    assert start(folder, EngineOptions(**options)).limits.chunking
    assert not start(folder, EngineOptions(**options, chunking=False)).limits.chunking


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_a_gpu_that_is_asked_for_and_missing_ends_the_start(tmp_path: Path) -> None:
    folder = shape_only("llama", tmp_path)
    options = {"random_weights": True, "threads": 1}
    model = ModelConfig(
        name="tiny", target=str(folder), worker="thread", device="cuda", options=options
    )
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        async with serving(Config(models=(model,))):
            pass


def test_a_cpu_computes_64_sequences_at_once_unless_told(tmp_path: Path) -> None:
    folder = shape_only("llama", tmp_path)
    options = {"random_weights": True, "kv_cache_gib": 0.01, "threads": 1, "device": "cpu"}
    assert start(folder, EngineOptions(**options)).limits.max_sequences == 64
    assert start(folder, EngineOptions(**options, max_sequences=5)).limits.max_sequences == 5


# ---- warming up


def test_every_step_that_warms_up_keeps_to_the_limits() -> None:
    for sequences, tokens, context, blocks in ((1, 2, 8, 3), (5, 64, 96, 9), (256, 8192, 4096, 99)):
        limits = EngineLimits(
            blocks=blocks,
            block_size=32,
            max_context=context,
            max_sequences=sequences,
            step_tokens=tokens,
        )
        steps = list(mixed_steps(limits))
        assert steps[0].tokens == max(each.tokens for each in steps)
        for step in steps:
            parts = [*step.decode, *step.prefill]
            assert step.prefill
            assert step.tokens <= tokens
            assert sorted(each.slot for each in parts) == list(range(len(parts)))
            assert len(parts) <= sequences
            for part in step.prefill:
                assert len(part.tokens) <= min(context, len(part.blocks) * 32)
                assert all(block < blocks for block in part.blocks)


def test_an_engine_that_was_warmed_up_says_what_it_would_have_said(tmp_path: Path) -> None:
    build("llama", tmp_path)
    cold, warm = Engine(tmp_path, step_tokens=64), Engine(tmp_path, step_tokens=64)
    for step in mixed_steps(warm.limits):
        assert len(warm.runner.run(step).tokens) == len(step.sampled)
    for engine in (cold, warm):
        engine.submit(PROMPT)
        engine.submit(PROMPT[:7])
        engine.run()
    assert [each.tokens for each in cold.answers.values()] == [
        each.tokens for each in warm.answers.values()
    ]
