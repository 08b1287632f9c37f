"""An answer without a next token ends with an error, and no other does: logits that are no finite
numbers, a grammar that fails."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from models import Engine
from safetensors.torch import load_file, save_file
from test_generator import GREEDY, generator

from headway.core.generation.sampling import Sampling
from headway.core.generation.step import Step
from headway.errors import ModelFailed

pytestmark = pytest.mark.real_time
_BAD = 77  # a token with an embedding that is no number


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][_BAD] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 5}, {"logprobs": 3}])
async def test_an_answer_without_numbers_is_an_error_and_its_neighbours_go_on(
    broken: Path, options: dict[str, float]
) -> None:
    asked = {**GREEDY, **options, "seed": 4}
    good, bad = [9, 40, 33] * 7, [9, _BAD, 33]
    async with generator(broken, dtype="float32") as model:
        alone = await model.generate(good, max_tokens=9, **asked)
        together = await asyncio.gather(
            *(model.generate(each, max_tokens=9, **asked) for each in (good, bad, good, bad)),
            return_exceptions=True,
        )
        later = await model.generate(good, max_tokens=9, **asked)
    for answer in (together[1], together[3]):
        assert isinstance(answer, ModelFailed)
        assert "not finite" in str(answer)
    for answer in (together[0], together[2], later):
        assert not isinstance(answer, BaseException)
        assert answer.tokens == alone.tokens


class FailingGrammar:
    def allowed(self, generated: Sequence[int]) -> Any:
        if generated:
            raise IndexError("too many indices")


def test_a_grammar_that_fails_ends_its_own_answer(folder: Path) -> None:
    engine = Engine(folder)
    engine.runner.matcher_of = lambda _: FailingGrammar()
    engine.submit((9, 40, 33), Sampling(temperature=0.0, grammar="any"))
    engine.submit((9, 40, 33))
    engine.step()  # the prompts
    step = engine.scheduler.next_step(0.0)
    assert isinstance(step, Step)
    sampled = engine.runner.run(step)
    assert sampled.broken == {0: "the answer's grammar failed: too many indices"}
