"""The numbers of a step with prompts in it, laid out for one copy to the device: decodes first.

The layout follows from three sizes. Each may be larger than what the step has: so one CUDA graph
serves many steps. What is left over changes nothing: tokens without a place in the cache, prompts
without tokens, rows of a spare slot.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy
import torch

from headway.core.generation.step import Step


class MixedSizes(NamedTuple):
    tokens: int
    decodes: int
    prompts: int

    @property
    def rows(self) -> int:
        """The rows after which a token may be sampled."""
        return self.decodes + self.prompts

    def widths(self) -> tuple[int, ...]:
        """The widths of the parts, in the order of `DeviceInputs`."""
        tokens, decodes, prompts = self
        return (
            *(tokens, tokens, tokens, decodes),
            *(prompts, prompts + 1, prompts),
            *(self.rows, self.rows, self.rows),
        )

    @property
    def numbers(self) -> int:
        return sum(map(_aligned, self.widths()))


def sizes_of(step: Step) -> MixedSizes:
    return MixedSizes(step.tokens, len(step.decode), len(step.prefill))


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """The inputs of a step on the device. All tensors are int32."""

    given: torch.Tensor  # ids; negative: the token that the slot sampled last
    slots: torch.Tensor  # of each token
    positions: torch.Tensor  # negative: it only fills the step up
    decode_lengths: torch.Tensor  # tokens that a decode attends to; 0: it is none
    prompt_slots: torch.Tensor
    starts: torch.Tensor  # where each prompt's tokens begin, and where the last one's end
    lengths: torch.Tensor  # tokens that its last one attends to
    rows: torch.Tensor  # tokens after which one is sampled,
    row_slots: torch.Tensor  # for whom,
    row_positions: torch.Tensor  # and where that one will be


def inputs_at(memory: torch.Tensor, sizes: MixedSizes) -> DeviceInputs:
    """The parts of this memory."""
    parts, at = [], 0
    for width in sizes.widths():
        parts.append(memory[at : at + width])
        at += _aligned(width)
    assert len(parts) == len(fields(DeviceInputs))
    return DeviceInputs(*parts)


class MixedInputs:
    def __init__(self, step: Step, lengths: list[int], spare_slot: int) -> None:
        """`lengths`: of the tables by slot; updated. `spare_slot`: one without a table."""
        self._step = step
        self._lengths = lengths
        self._spare_slot = spare_slot
        self._entries: list[tuple[int, int, int]] = []  # blocks that join a table

    def write(self, host: torch.Tensor, sizes: MixedSizes) -> tuple[int, int]:
        """Write the step's numbers. Returns their count, and that of table entries at their end."""
        parts = DeviceInputs(*(each.numpy() for each in _parts(inputs_at(host, sizes))))
        self._write_decodes(parts)
        self._write_prompts(parts)
        at, count = sizes.numbers, len(self._entries)
        if count:
            entries = numpy.array(self._entries, dtype=numpy.int32).T
            host[at : at + 3 * count].view(3, count).numpy()[:] = entries
        return at + 3 * count, count

    def _write_decodes(self, parts: DeviceInputs) -> None:
        decode = self._step.decode
        count = len(decode)
        slots, positions = [each.slot for each in decode], [each.position for each in decode]
        parts.given[:count] = -1
        parts.slots[:count] = slots
        parts.positions[:count] = positions
        parts.decode_lengths[:count] = positions
        parts.decode_lengths[:count] += 1
        parts.decode_lengths[count:] = 0
        parts.rows[:count] = numpy.arange(count)
        parts.row_slots[:count] = slots
        parts.row_positions[:count] = positions
        parts.row_positions[:count] += 1
        for each in decode:
            if each.blocks:
                self._append(each.slot, each.blocks)

    def _write_prompts(self, parts: DeviceInputs) -> None:
        at = row = len(self._step.decode)
        for number, part in enumerate(self._step.prefill):
            if part.is_first:
                self._lengths[part.slot] = 0
            self._append(part.slot, part.blocks)
            count = len(part.tokens)
            length = part.position + count
            parts.given[at : at + count] = part.tokens
            parts.slots[at : at + count] = part.slot
            parts.positions[at : at + count] = numpy.arange(part.position, length)
            parts.prompt_slots[number] = part.slot
            parts.starts[number] = at
            parts.lengths[number] = length
            at += count
            if part.is_last:
                parts.rows[row], parts.row_slots[row] = at - 1, part.slot
                parts.row_positions[row] = length
                row += 1
        self._fill_up(parts, at, row)

    def _fill_up(self, parts: DeviceInputs, at: int, row: int) -> None:
        prompts = len(self._step.prefill)
        parts.given[at:] = 0
        parts.slots[at:] = self._spare_slot
        parts.positions[at:] = -1
        parts.prompt_slots[prompts:] = self._spare_slot
        parts.starts[prompts:] = at
        parts.lengths[prompts:] = 0
        parts.rows[row:] = 0
        parts.row_slots[row:] = self._spare_slot
        parts.row_positions[row:] = 0

    def _append(self, slot: int, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self._entries.append((slot, self._lengths[slot], block))
            self._lengths[slot] += 1


def _parts(inputs: DeviceInputs) -> list[torch.Tensor]:
    return [getattr(inputs, each.name) for each in fields(inputs)]


def _aligned(count: int) -> int:
    """The count rounded up: kernels load 16 bytes at a time."""
    return -(-count // 4) * 4
