"""The numbers of a step with prompts in it, laid out for one copy to the device: decodes first."""

from dataclasses import dataclass, fields
from typing import Any

import torch

from headway.core.generation.step import Step


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """All int32."""

    given: torch.Tensor  # ids; negative: the token that the slot sampled last
    slots: torch.Tensor  # of each token
    positions: torch.Tensor
    sequence_slots: torch.Tensor  # of each prompt
    starts: torch.Tensor  # where its tokens begin, behind the decodes
    lengths: torch.Tensor  # tokens that its last one attends to
    rows: torch.Tensor  # tokens after which one is sampled
    entry_slots: torch.Tensor  # blocks that join a table: whose,
    entry_columns: torch.Tensor  # where,
    entry_blocks: torch.Tensor  # which


class MixedInputs:
    def __init__(self, step: Step, lengths: list[int]) -> None:
        """`lengths`: of the tables by slot; brought up to date."""
        self._lengths = lengths
        self._entries: list[tuple[int, int, int]] = []
        given: list[int] = [-1] * len(step.decode)
        slots = [each.slot for each in step.decode]
        positions = [each.position for each in step.decode]
        rows, starts = list(range(len(step.decode))), [0]
        for each in step.decode:
            self._append(each.slot, each.blocks)
        for part in step.prefill:
            if part.is_first:
                lengths[part.slot] = 0
            self._append(part.slot, part.blocks)
            count = len(part.tokens)
            given += part.tokens
            slots += [part.slot] * count
            positions += range(part.position, part.position + count)
            starts.append(starts[-1] + count)
            if part.is_last:
                rows.append(len(given) - 1)
        entries = list(zip(*self._entries, strict=True)) or [(), (), ()]
        self._numbers: list[Any] = [
            given,
            slots,
            positions,
            [part.slot for part in step.prefill],
            starts,
            [part.position + len(part.tokens) for part in step.prefill],
            rows,
            *entries,
        ]

    def _append(self, slot: int, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self._entries.append((slot, self._lengths[slot], block))
            self._lengths[slot] += 1

    def to(self, host: torch.Tensor, device: str) -> DeviceInputs:
        """In one copy, through this pinned buffer."""
        view, at, places = host.numpy(), 0, []
        for numbers in self._numbers:
            stop = at + len(numbers)
            view[at:stop] = numbers
            places.append(slice(at, stop))
            at = -(-stop // 4) * 4  # kernels load 16 bytes at a time
        there = host[:at].to(device, non_blocking=True)
        assert len(places) == len(fields(DeviceInputs))
        return DeviceInputs(*(there[place] for place in places))
