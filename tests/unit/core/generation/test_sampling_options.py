"""What a caller may ask of sampling; the rest is refused by name."""

from typing import Any

import pytest

from headway.core.generation.sampling import Sampling
from headway.errors import InvalidInput


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "warm"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", 2.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("logprobs", 21),
        ("seed", 1 << 64),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", dict.fromkeys(range(2000), 1.0)),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        Sampling(**{field: value})


def test_defaults_change_nothing() -> None:
    sampling = Sampling()
    assert not sampling.is_greedy
    assert not sampling.has_penalties
