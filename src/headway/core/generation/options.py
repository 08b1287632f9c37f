"""The options of a request beside its prompt: read by name, checked before it is queued.

Pure. Every door (in process, OpenAI's routes, v2) reads its fields into this, so that each of them
refuses the same things in the same words.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.core.generation.sampling import Sampling
from headway.errors import InvalidInput

MOST_STOPS = 16
LONGEST_STOP = 1000  # characters
MOST_STOP_IDS = 256
# Routes with schemas make the grammar; no caller writes one by hand. Prompts are scored if the
# route shows the scores.
_NOT_NAMED = {"grammar", "scores_prompt"}
_SAMPLING = frozenset(each.name for each in dataclasses.fields(Sampling)) - _NOT_NAMED
_OTHERS = frozenset(
    ["max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "cache_salt"]
)
NAMES = _SAMPLING | _OTHERS


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    sampling: Sampling
    is_seeded: bool = False
    max_tokens: int | None = None  # None: as many as fit into the context
    min_tokens: int = 0
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()  # in addition to the model's own
    ignore_eos: bool = False
    cache_salt: str = ""

    def with_grammar(self, grammar: str) -> "GenerationOptions":
        return replace(self, sampling=replace(self.sampling, grammar=grammar))


def generation_options(
    given: Mapping[str, Any], *, grammar: str = "", scores_prompt: bool = False
) -> GenerationOptions:
    """Read the options from `given`. Raises InvalidInput, which begins with the field's name."""
    for name in given:
        if name not in NAMES:
            raise InvalidInput(f"{name}: is an unknown option")
    sampling = {name: value for name, value in given.items() if name in _SAMPLING}
    ignore_eos = given.get("ignore_eos", False)
    if not isinstance(ignore_eos, bool):
        raise InvalidInput(f"ignore_eos: must be true or false, not {ignore_eos!r}")
    salt = given.get("cache_salt", "")
    if not isinstance(salt, str) or len(salt) > LONGEST_STOP:
        raise InvalidInput(f"cache_salt: must be a text of up to {LONGEST_STOP} characters")
    max_tokens = _count("max_tokens", given.get("max_tokens"), least=1)
    min_tokens = _count("min_tokens", given.get("min_tokens"), least=0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidInput(f"min_tokens: {min_tokens} is more than max_tokens ({max_tokens})")
    return GenerationOptions(
        sampling=Sampling(**sampling, grammar=grammar, scores_prompt=scores_prompt),
        is_seeded="seed" in sampling,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stops=_stops(given.get("stop")),
        stop_ids=_stop_ids(given.get("stop_token_ids")),
        ignore_eos=ignore_eos,
        cache_salt=salt,
    )


def _stops(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop or ()
    if not isinstance(stops, list | tuple):
        raise InvalidInput("stop: must be a text or a list of texts")
    if len(stops) > MOST_STOPS:
        raise InvalidInput(f"stop: {len(stops)} texts; at most {MOST_STOPS} are allowed")
    for each in stops:
        if not isinstance(each, str) or not 0 < len(each) <= LONGEST_STOP:
            raise InvalidInput(f"stop: each is a text of 1 to {LONGEST_STOP} characters")
    return tuple(stops)


def _stop_ids(ids: Any) -> frozenset[int]:
    if ids is None:
        return frozenset()
    is_ids = isinstance(ids, list | tuple) and all(type(each) is int for each in ids)
    if not is_ids or len(ids) > MOST_STOP_IDS:
        raise InvalidInput(f"stop_token_ids: a list of up to {MOST_STOP_IDS} token ids is expected")
    return frozenset(ids)


def _count(name: str, value: Any, *, least: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name}: must be a whole number from {least} on, not {value!r}")
    return value
