"""How the next token is chosen: a caller's options, checked before the request is queued."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.errors import InvalidInput

MOST_LOGPROBS = 20
MOST_BIASES = 1024
_COLDEST = 1e-5  # a lower temperature counts as 0: logits divided by it would overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    temperature: float = 1.0  # 0: the most likely token, always
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = (
        None  # how many of the likeliest tokens beside the chosen one; None: no logprobs
    )
    seed: int = 0
    scores_prompt: bool = False  # the first token's log-probabilities come with the prompt's
    grammar: str = ""  # a grammar of the text, as the engine's library writes it; empty: any text

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, 100.0)
        if self.is_greedy:
            object.__setattr__(self, "temperature", 0.0)
        _within("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidInput("top_p: must be more than 0")
        _whole("top_k", self.top_k, 0, 1 << 31)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _whole("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        if len(self.logit_bias) > MOST_BIASES:
            raise InvalidInput(f"logit_bias: at most {MOST_BIASES} tokens")
        for token, bias in self.logit_bias.items():
            _whole("logit_bias", token, 0, 1 << 31)
            _within("logit_bias", bias, -100.0, 100.0)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < _COLDEST

    @property
    def has_penalties(self) -> bool:
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities of the chosen token and the likeliest ones, before any adjustment."""

    chosen: float
    top: tuple[tuple[int, float], ...]
    # Only of an answer's first token, on request: of the prompt's tokens after its first.
    prompt: "tuple[Logprobs, ...]" = ()


def _within(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput(f"{name}: must be a number, not {value!r}")
    if not least <= value <= most:
        raise InvalidInput(f"{name}: must be from {least:g} to {most:g}, not {value:g}")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{name}: must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise InvalidInput(f"{name}: must be from {least} to {most}, not {value}")
