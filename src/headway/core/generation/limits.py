"""The limits of token-level batching, checked once. `scheduler` refuses prompts beyond them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    blocks: int  # KV blocks in all
    block_size: int = 16  # tokens
    max_context: int = 2048  # prompt and answer together
    max_sequences: int = 64  # running at once
    step_tokens: int = 512  # computed in one step
    max_queue: int = 4096  # sequences waiting
    adapter_slots: int = 8  # adapters in one step; 0: the engine knows none
    chunking: bool = True  # False: a prompt is computed in one step
    max_stretch: float = 1.65  # a chunk makes a step of decodes at most this many times longer,
    late_stretch: float = math.inf  # or this much if the prompt is late
    late_after: float = 3.2  # a prompt is late after this many times its time alone
    burst_stretch: float = math.inf  # the limit for a late prompt of a burst beside other tenants
    has_rests: bool = False  # a step of decodes alone follows each chunk, unless a prompt is late
    tile: int = 1  # tokens of a tile: a part of a tile costs as much as a whole one
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # absent: 1
    ageing_s: float = 1.0  # longer waiting sequences, in any class, get a share of admissions

    def __post_init__(self) -> None:
        names = ("blocks", "block_size", "max_context", "max_sequences", "step_tokens", "max_queue")
        for name in (*names, "tile"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"must be a whole number from 1 on, not {value!r}", field=name)
        if self.adapter_slots < 0:
            raise ConfigError(f"must not be negative: {self.adapter_slots}", field="adapter_slots")
        if self.step_tokens <= self.max_sequences:
            raise ConfigError(
                f"must be more than max_sequences ({self.max_sequences}), for every running "
                f"sequence may take a token of a step, not {self.step_tokens}",
                field="step_tokens",
            )
        for name in ("max_stretch", "late_stretch", "late_after", "burst_stretch"):
            if getattr(self, name) <= 1.0:
                raise ConfigError(f"must be more than 1, not {getattr(self, name)}", field=name)
        self._check_weights()

    def _check_weights(self) -> None:
        for tenant, weight in self.tenant_weights.items():
            if weight <= 0:
                raise ConfigError(
                    f"must be more than 0, not {weight}", field=f"tenants[{tenant!r}]"
                )

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
