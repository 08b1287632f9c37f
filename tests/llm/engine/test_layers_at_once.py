"""All layers in one call of the kernels: the same numbers as layer by layer, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from models import KERNEL_KINDS, VOCABULARY, Answer, Engine, build, kernels_of

from headway.core.generation.sampling import Sampling
from headway.core.generation.step import Prefill, Step
from headway.engine.attention.base import StepLayout
from headway.engine.cache import CacheShape
from headway.engine.cpu.building import Instructions, compiled
from headway.engine.cpu.layers import LayersAtOnce, Parts
from headway.engine.cpu.linear import PanelLinear
from headway.engine.cpu.runner import CpuRunner

pytestmark = pytest.mark.skipif(
    compiled(torch.float32) is None, reason="no compiler, or another processor"
)


def answers(folder: Path, *, at_once: bool, **options: Any) -> list[Answer]:
    engine = Engine(folder, blocks=1000, **options)
    decoder: Any = engine.runner._decoder
    assert decoder._at_once is not None
    calls = []
    if at_once:
        run = decoder._at_once._run
        decoder._at_once._run = lambda *given: calls.append(given) or run(*given)
    else:
        decoder._at_once = None
    for index in range(10):
        prompt = tuple((7 * index + each) % VOCABULARY for each in range(5 + 22 * index))
        engine.submit(prompt, Sampling(temperature=0.0, logprobs=3))
    engine.run()
    assert bool(calls) == at_once
    return list(engine.answers.values())


@pytest.mark.parametrize(
    ("kind", "is_rounded"),
    [("qwen2", False), ("llama-tied-rope3", False), ("llama", True), ("qwen2", True)],
)
@pytest.mark.parametrize("step_tokens", [19, 900])  # the latter on several threads everywhere
@pytest.mark.parametrize("kernels", KERNEL_KINDS)
def test_the_numbers_are_those_of_layer_by_layer(
    tmp_path: Path,
    kind: str,
    is_rounded: bool,
    step_tokens: int,
    kernels: tuple[Instructions, torch.dtype],
) -> None:
    folder = build(kind, tmp_path)
    torch.set_num_threads(2)
    try:
        options = {"is_rounded": is_rounded, "step_tokens": step_tokens, "dtype": kernels[1]}
        options["kernels"] = kernels_of(kernels)
        assert answers(folder, at_once=True, **options) == answers(folder, at_once=False, **options)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_what_the_kernels_do_not_know_is_computed_layer_by_layer(tmp_path: Path, kind: str) -> None:
    """Weights of 32 bits; norms of heads."""
    decoder: Any = Engine(build(kind, tmp_path)).runner._decoder
    assert decoder._at_once is None


def test_engines_with_one_decoder_keep_their_own_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one's step begins when this one's pages are already looked up."""
    folder = build("qwen2", tmp_path)
    one = Engine(folder, blocks=63)
    decoder: Any = one.runner._decoder
    other = CpuRunner(decoder, one.limits)
    number = one.submit((5, 6, 7))
    one.run()
    expected = one.answers[number].tokens
    threads, is_inside = torch.get_num_threads(), []

    def run_other_first() -> int:
        if not is_inside:
            is_inside.append(True)
            prompt = Prefill(0, 0, 0, (9,) * 250, tuple(range(63)), is_first=True, is_last=True)
            other.run(Step(0, (), (prompt,), (), ()))
            is_inside.clear()
        return threads

    monkeypatch.setattr(torch, "get_num_threads", run_other_first)
    again = one.submit((5, 6, 7))
    one.run()
    assert one.answers[again].tokens == expected


def test_weights_whose_sizes_do_not_fit_together_are_refused() -> None:
    kernels = compiled(torch.float32)
    assert kernels is not None

    def product(outputs: int, inputs: int, bias: int | None = None) -> PanelLinear:
        given = None if bias is None else torch.ones(bias)
        return PanelLinear(kernels, torch.ones(outputs, inputs).half(), None, given)

    norm = torch.ones(32)
    good = Parts(product(64, 32), product(32, 32), product(96, 32), product(32, 48), norm, norm)
    shape = CacheShape(layers=1, kv_heads=1, head_size=16)
    layers = LayersAtOnce(kernels, [good], shape, 1e-5, width=32)
    for bad in (
        good._replace(qkv=product(80, 32)),
        good._replace(out=product(32, 32, bias=8)),
        good._replace(out=product(32, 32, bias=1)),
        good._replace(down=product(32, 64)),
        good._replace(out=product(32, 48)),
        good._replace(between=torch.ones(48)),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            LayersAtOnce(kernels, [good, bad], shape, 1e-5, width=32)
    with pytest.raises(ValueError, match="do not fit together"):
        LayersAtOnce(kernels, [good], shape, 1e-5, width=48)
    keys = [torch.zeros(2, 16, 1, 16)]
    where = torch.zeros(1, dtype=torch.int64)
    layout = StepLayout(keys, keys, where[None], where, where, where, torch.tensor([0, 1]), 1)
    by = torch.ones(1, 1, 8, dtype=torch.complex64)
    with pytest.raises(ValueError, match="32 wide"):
        layers(torch.ones(1, 16), by, layout)
    with pytest.raises(ValueError, match="other heads"):
        layers(torch.ones(1, 32), by, layout._replace(keys=[torch.zeros(2, 16, 2, 16)]))
    with pytest.raises(ValueError, match="not of the kernels'"):
        layers(torch.ones(1, 32), by, layout._replace(keys=[keys[0].bfloat16()]))
