"""How tokens are chosen, against what the options say."""

import dataclasses
from collections import Counter

import pytest
import torch

from headway.core.generation.sampling import Sampling
from headway.engine import sampling as host
from headway.engine.gpu.steps.drawing import CutDraws, Draw
from headway.engine.sampling import Row, chance, sample

PROBABILITIES = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])


def draw(sampling: Sampling, times: int = 4000) -> Counter[int]:
    """Tokens drawn at so many positions from the same logits."""
    logits = PROBABILITIES.log().expand(times, -1)
    rows = [Row(sampling, position, (0,), ()) for position in range(times)]
    return Counter(sample(logits, rows).tokens)


def shares(sampling: Sampling) -> list[float]:
    counts = draw(sampling)
    return [counts[token] / counts.total() for token in range(5)]


def test_tokens_come_as_often_as_they_are_likely() -> None:
    assert shares(Sampling(seed=3)) == pytest.approx(PROBABILITIES.tolist(), abs=0.03)


def test_temperature_sharpens() -> None:
    wanted = PROBABILITIES.pow(2.0)
    got = shares(Sampling(temperature=0.5, seed=1))
    assert got == pytest.approx((wanted / wanted.sum()).tolist(), abs=0.03)


def test_no_temperature_is_the_likeliest() -> None:
    assert set(draw(Sampling(temperature=0.0))) == {0}


@pytest.mark.parametrize("cut", [{}, {"min_p": 0.05}, {"top_p": 0.9}, {"top_k": 3}])
def test_hardly_any_temperature_is_none(cut: dict[str, float]) -> None:
    """Logits divided by 1e-40 are no numbers: the step raised for everybody in it."""
    assert set(draw(Sampling(temperature=1e-40, **cut), times=8)) == {0}  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [{"min_p": 0.05}, {"top_p": 0.9}, {"min_p": 0.1, "top_p": 0.5}])
def test_logits_that_are_no_numbers_end_no_step(cut: dict[str, float]) -> None:
    logits = torch.full((1, 5), torch.nan)
    [token] = sample(logits, [Row(Sampling(**cut), 0, (0,), ())]).tokens  # type: ignore[arg-type]
    assert 0 <= token < 5


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=2), {0, 1}),
        (Sampling(top_p=0.65), {0, 1}),
        (Sampling(top_p=0.75), {0, 1, 2}),
        (Sampling(min_p=0.3), {0, 1, 2}),
        (Sampling(top_k=3, top_p=0.5), {0, 1}),
        (Sampling(top_p=0.01), {0}),
        (Sampling(logit_bias={0: -100.0, 4: 100.0}), {4}),
    ],
)
def test_unlikely_tokens_are_cut_off(sampling: Sampling, kept: set[int]) -> None:
    assert set(draw(sampling, times=400)) == kept


def test_what_is_kept_is_the_same_however_large_the_vocabulary() -> None:
    """More tokens than are looked at first, and all alike: nothing may be lost."""
    logits = torch.zeros(300, 5000)
    rows = [Row(Sampling(top_p=0.9, seed=5), position, (), ()) for position in range(300)]
    tokens = sample(logits, rows).tokens
    assert len(set(tokens)) > 250


@pytest.mark.parametrize(
    ("sampling", "chosen"),
    [
        (Sampling(temperature=0.0, presence_penalty=0.5), 1),
        (Sampling(temperature=0.0, frequency_penalty=0.2), 1),
        (Sampling(temperature=0.0, repetition_penalty=3.0), 2),  # the prompt's token 1 counts too
        (Sampling(temperature=0.0), 0),
    ],
)
def test_penalties_are_for_what_was_said(sampling: Sampling, chosen: int) -> None:
    row = Row(sampling, 5, prompt=(1,), generated=(0, 0, 0))
    assert sample(PROBABILITIES.log()[None], [row]).tokens == [chosen]


def test_logprobs_are_of_the_model_not_of_the_options() -> None:
    sampling = Sampling(temperature=0.0, logit_bias={4: 100.0}, logprobs=2)
    sampled = sample(PROBABILITIES.log()[None], [Row(sampling, 0, (), ())])
    (logprobs,) = sampled.logprobs
    assert logprobs is not None
    assert sampled.tokens == [4]
    assert logprobs.chosen == pytest.approx(float(PROBABILITIES[4].log()))
    assert [token for token, _ in logprobs.top] == [0, 1]


def test_chance_is_spread_evenly_and_depends_on_both() -> None:
    values = [chance(seed, position) for seed in range(50) for position in range(50)]
    assert len(set(values)) == len(values)
    assert min(values) >= 0.0
    assert max(values) < 1.0
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)


CUTS = [
    Sampling(top_p=0.9),
    Sampling(top_p=0.3, temperature=0.7),
    Sampling(top_k=1),
    Sampling(top_k=40, temperature=1.3),
    Sampling(top_k=40, top_p=0.8),
    Sampling(top_k=700, top_p=0.95),
    Sampling(top_k=1 << 30),
    Sampling(min_p=0.1),
    Sampling(min_p=0.001, top_p=0.9),
    Sampling(min_p=0.02, top_k=9, top_p=0.5, temperature=2.0),
    Sampling(min_p=1.0),
]


def on_device(logits: torch.Tensor, rows: list[Row]) -> list[int]:
    """As a step does it: each row has a slot, and the slots lie in another order."""
    count = len(rows)
    draws = [
        Draw(number, count - 1 - number, row.position, row.sampling)
        for number, row in enumerate(rows)
    ]
    tokens = torch.full((count + 2,), -1, dtype=torch.int32)
    last = torch.full((count + 1,), -1)
    CutDraws(count, logits.shape[1], in_flight=2, is_pinned=False)(draws, logits, tokens, last)
    assert tokens[count:].tolist() == [-1, -1]
    assert last[:count].flip(0).tolist() == tokens[:count].clamp(min=0).tolist()
    found: list[int] = tokens[:count].tolist()
    return found


@pytest.mark.parametrize("vocabulary", [5, 300, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # of bf16's many are equal
def test_a_device_draws_what_the_host_draws(vocabulary: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(70, vocabulary, generator=generator).mul(3.0).to(dtype)
    for cut in CUTS:
        rows = [
            Row(dataclasses.replace(cut, seed=number % 3 + (1 << 63)), 7 + number, (), ())
            for number in range(len(logits))
        ]
        assert on_device(logits, rows) == sample(logits, rows).tokens, cut


def test_rows_with_other_parameters_are_drawn_together() -> None:
    logits = torch.randn(len(CUTS), 500, generator=torch.Generator().manual_seed(1))
    rows = [Row(cut, number, (), ()) for number, cut in enumerate(CUTS)]
    assert on_device(logits, rows) == [
        sample(line[None], [row]).tokens[0] for line, row in zip(logits, rows, strict=True)
    ]


def test_a_device_marks_rows_that_are_no_numbers() -> None:
    rows = [Row(cut, 0, (), ()) for cut in CUTS]
    assert on_device(torch.full((len(CUTS), 50), torch.nan), rows) == [-1] * len(CUTS)


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_drawn_does_not_depend_on_how_many_are_looked_at_first(
    cut: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(40, 2000, generator=torch.Generator().manual_seed(2)).bfloat16()
    rows = [Row(cut, position, (), ()) for position in range(40)]
    wanted = sample(logits, rows).tokens
    for candidates in (1, 8, 2000):
        monkeypatch.setattr(host, "_CANDIDATES", candidates)
        assert sample(logits, rows).tokens == wanted


@pytest.mark.parametrize("cut", [Sampling(), Sampling(top_k=3)])
def test_the_highest_chance_draws_no_token_that_is_forbidden(
    cut: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "chance", lambda seed, position: 1 - 2.0**-40)
    allowed = torch.tensor([True, True, False, False, False])
    row = Row(cut, 0, (), (), allowed)
    assert sample(PROBABILITIES.log()[None], [row]).tokens == [1]
