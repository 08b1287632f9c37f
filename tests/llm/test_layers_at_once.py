"""All layers in one call of the kernels: the same numbers as layer by layer, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from models import VOCABULARY, Answer, Engine, build

from headway.core.generation.sampling import Sampling
from headway.engine.cache import Shape
from headway.engine.cpu.building import compiled
from headway.engine.cpu.layers import LayersAtOnce, Parts
from headway.engine.linear import PanelLinear

pytestmark = pytest.mark.skipif(compiled() is None, reason="no compiler, or another processor")


def answers(folder: Path, *, at_once: bool, **options: Any) -> list[Answer]:
    engine = Engine(folder, step_tokens=19, **options)
    decoder: Any = engine.runner._decoder
    assert decoder._at_once is not None
    calls = []
    if at_once:
        run = decoder._at_once._run
        decoder._at_once._run = lambda *given: calls.append(given) or run(*given)
    else:
        decoder._at_once = None
    for index in range(6):
        prompt = tuple((7 * index + each) % VOCABULARY for each in range(5 + 9 * index))
        engine.submit(prompt, Sampling(temperature=0.0, logprobs=3))
    engine.run()
    assert bool(calls) == at_once
    return list(engine.answers.values())


@pytest.mark.parametrize(
    ("kind", "is_rounded"),
    [("qwen2", False), ("llama-tied-rope3", False), ("llama", True), ("qwen2", True)],
)
def test_the_numbers_are_those_of_layer_by_layer(
    tmp_path: Path, kind: str, is_rounded: bool
) -> None:
    folder = build(kind, tmp_path)
    torch.set_num_threads(2)
    try:
        found = answers(folder, at_once=True, is_rounded=is_rounded)
        assert found == answers(folder, at_once=False, is_rounded=is_rounded)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_what_the_kernels_do_not_know_is_computed_layer_by_layer(tmp_path: Path, kind: str) -> None:
    """Weights of 32 bits; norms of heads."""
    decoder: Any = Engine(build(kind, tmp_path)).runner._decoder
    assert decoder._at_once is None


def test_weights_whose_sizes_do_not_fit_together_are_refused() -> None:
    kernels = compiled()
    assert kernels is not None

    def product(outputs: int, inputs: int) -> PanelLinear:
        return PanelLinear(kernels, torch.ones(outputs, inputs).half(), None, None)

    norm = torch.ones(32)
    good = Parts(product(64, 32), product(32, 32), product(96, 32), product(32, 48), norm, norm)
    shape = Shape(layers=1, kv_heads=1, head_size=16)
    LayersAtOnce(kernels, [good], shape, 1e-5)
    for bad in (
        good._replace(down=product(32, 64)),
        good._replace(out=product(32, 48)),
        good._replace(between=torch.ones(48)),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            LayersAtOnce(kernels, [good, bad], shape, 1e-5)
