"""Writes the texts of several clips at once, a token of each in a step.

Nothing is padded to the longest: what the steps attend to is in blocks of frames, each of which
belongs to one row. A text that is finished leaves, and takes its blocks along.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from headway.models.ready.speech.moonshine.graph import BLOCK, BLOCKS, FRAMES, ROWS

Array = numpy.ndarray[Any, Any]

_BEGIN, _END = 1, 2
_NEVER = -1e9
_SURE_FRAMES = 40  # a second: what is longer, and not silent, has at least a word


def blocks_of(frames: int) -> int:
    return -(-frames // BLOCK)


class MoonshineDecoder:
    """`hear` and `step` are the two sessions of `decoder_sessions`."""

    def __init__(self, hear: Any, step: Any) -> None:
        self._hear = hear
        self._step = step
        self._memory = _Memory()
        self._own = [each.name for each in step.get_outputs() if ".decoder." in each.name]
        [self._heads] = {each.shape[1] for each in step.get_inputs() if ".decoder." in each.name}
        [self._width] = {each.shape[3] for each in step.get_inputs() if ".decoder." in each.name}

    def decode(self, states: Sequence[Array], most: Sequence[int]) -> list[list[int]]:
        """The tokens of each part; at most `most` of them, by part."""
        texts: list[list[int]] = [[] for _ in states]
        batch = self._begin(states)
        while batch.parts:
            tokens = self._next(batch)
            for part, token in zip(batch.parts, tokens, strict=True):
                texts[part].append(int(token))
            is_whole = [
                texts[part][-1] == _END or len(texts[part]) >= most[part] for part in batch.parts
            ]
            batch.go_on(tokens, is_whole)
        return [[each for each in text if each != _END] for text in texts]

    def _begin(self, states: Sequence[Array]) -> "_Batch":
        nothing = numpy.zeros((len(states), self._heads, 0, self._width), numpy.float32)
        return _Batch(
            [each.shape[1] for each in states],
            heard=self._heard(states),
            own={_past(name): nothing for name in self._own},
        )

    def _heard(self, states: Sequence[Array]) -> dict[str, Array]:
        """The frames' keys and values, which every step reads: each part's blocks follow those of
        the part before."""
        counts = [blocks_of(each.shape[1]) for each in states]
        arrays = {
            each.name: self._memory.array(each.name, (sum(counts), *each.shape[1:]))
            for each in self._hear.get_outputs()
        }
        end = 0
        for part, count in zip(states, counts, strict=True):
            start, end = end, end + count
            padding = count * BLOCK - part.shape[1]
            binding = self._hear.io_binding()
            binding.bind_cpu_input(
                "encoder_hidden_states", numpy.pad(part, ((0, 0), (0, padding), (0, 0)))
            )
            for name, array in arrays.items():
                binding.bind_ortvalue_output(name, _value(array[start:end]))
            self._hear.run_with_iobinding(binding)
        return arrays

    def _next(self, batch: "_Batch") -> Array:
        logits, *own = self._step.run_with_ort_values(["logits", *self._own], batch.feeds)
        batch.feeds |= zip(map(_past, self._own), own, strict=True)
        scores: Array = logits.numpy()[:, -1]
        if batch.is_new:
            # Where the highest tones are missing (a telephone, another rate), it is often a little
            # surer of nothing at all than of the first word.
            scores[batch.frames > _SURE_FRAMES, _END] = -numpy.inf
        tokens: Array = scores.argmax(axis=1)
        return tokens


class _Batch:
    """The parts that are being transcribed, each in one row."""

    def __init__(
        self, frames: Sequence[int], *, heard: dict[str, Array], own: Mapping[str, Array]
    ) -> None:
        self.is_new = True
        self.parts = list(range(len(frames)))  # of each row
        self.frames = numpy.array(frames)  # of each row at the start
        counts = [blocks_of(each) for each in frames]
        self._rows = numpy.repeat(numpy.array(self.parts, numpy.int64), counts)  # of each block
        self._filled = numpy.concatenate(  # of each block, and more where the next has some, too
            [each - BLOCK * numpy.arange(count) for each, count in zip(frames, counts, strict=True)]
        )
        self._heard = heard
        self.feeds: dict[str, Any] = {}
        self._lay_out(own)
        self._say(numpy.full(len(frames), _BEGIN, numpy.int64))

    def go_on(self, tokens: Array, is_whole: Sequence[bool]) -> None:
        """Append these tokens, and keep only the rows whose texts are not complete."""
        self.is_new = False
        rows = numpy.flatnonzero(~numpy.array(is_whole))
        self.parts = [self.parts[row] for row in rows]
        if any(is_whole) and self.parts:
            self._keep(rows)
        self._say(tokens[rows])

    def _say(self, tokens: Array) -> None:
        self.feeds["input_ids"] = _value(tokens[:, None])

    def _keep(self, rows: Array) -> None:
        """The last blocks take the places of those that leave: few are copied, no memory is new."""
        stays = numpy.isin(self._rows, rows)
        count = int(stays.sum())
        places, last = numpy.flatnonzero(~stays[:count]), count + numpy.flatnonzero(stays[count:])
        for array in (self._rows, self._filled, *self._heard.values()):
            array[places] = array[last]
        self._rows = numpy.searchsorted(rows, self._rows[:count])
        self._filled = self._filled[:count]
        self._heard = {name: array[:count] for name, array in self._heard.items()}
        self._lay_out(
            {name: past.numpy()[rows] for name, past in self.feeds.items() if ".decoder." in name}
        )

    def _lay_out(self, own: Mapping[str, Array]) -> None:
        """Arrange the inputs of the steps: only their own past changes from step to step."""
        arrays = {
            **own,
            **self._heard,
            ROWS: self._rows,
            FRAMES: _mask(numpy.arange(BLOCK) < self._filled[:, None, None, None]),
            BLOCKS: _mask(self._rows == numpy.arange(len(self.parts))[:, None]),
        }
        self.feeds = {name: _value(array) for name, array in arrays.items()}


class _Memory(threading.local):
    """Memory for the inputs of steps, kept from batch to batch: allocating hundreds of megabytes
    again would take as long as all the steps. Each worker's thread has its own."""

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def array(self, name: str, shape: Sequence[int]) -> Array:
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[name] = numpy.empty(count, numpy.float32)
        return buffer[:count].reshape(shape)


def _mask(is_there: Array) -> Array:
    return numpy.where(is_there, 0.0, _NEVER).astype(numpy.float32)


def _value(array: Array) -> Any:
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _past(name: str) -> str:
    return name.replace("present", "past_key_values")
