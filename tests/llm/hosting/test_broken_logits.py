"""Logits that are no finite numbers end their answer with an error, and no other."""

import asyncio
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from test_generator import GREEDY, generator

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
