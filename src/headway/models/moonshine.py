"""Speech recognition with Moonshine (base, English): a clip in, its text out. Runs on onnxruntime.

The encoder hears each part by itself and unpadded: batching it would gain nothing on a CPU. The
decoder writes all texts together, a token of each in a step; a text that is finished leaves.
"""

import math
import re
import threading
import wave
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy

from headway.errors import ConfigError
from headway.models.audio import RATE, Samples
from headway.models.moonshine_graph import MASK, decoder_session, encoder_session
from headway.models.transcribe import SAMPLES_S, SpeechModel
from headway.models.weights import PackagedWeights, find_weights

Array = numpy.ndarray[Any, Any]

MOONSHINE_WEIGHTS = PackagedWeights(
    package="moonshine-cpp",
    version="0.1.4",
    module="moonshine_cpp",
    folder="",
    files={
        "models/base-en/encoder_model.ort": (
            "9d1a19e044cbf89a207723d1adb667de89a5671a1e3e611b8ebe721b2c31219c"
        ),
        "models/base-en/decoder_model_merged.ort": (
            "370e0c1f161d68dc1c2264c1a82024fb123380da3b73f47f05531d1e8d3308c3"
        ),
        "models/base-en/tokenizer.bin": (
            "04670d78994d030185c3dd843c60591788fed0a56cc6750747bd326825f13ca9"
        ),
        "test-data/beckett.wav": (
            "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61"
        ),
    },
    size_mb=55,
    licence="MIT",
)
_FILES = ("encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin")
_BEGIN, _END = 1, 2
_TOKENS_PER_S = 6.5  # nobody speaks faster; a decoder that goes round in circles is stopped
_LEAST = RATE // 2  # samples; silence is added to less
_NEVER = -1e9
_SURE_FRAMES = 40  # a second: what is longer, and not silent, has at least a word
_FRAME = 384  # samples
_MOST_FRAMES = 20_480  # padded, in one decoding: 550 MB of keys and values; 16 parts of 30 s


class Moonshine(SpeechModel):
    """Options: `weights` (a folder with encoder_model.ort, decoder_model_merged.ort and
    tokenizer.bin; by default the pinned package), `threads` (of one batch), and those of every
    speech model."""

    languages = ("en",)

    def __init__(
        self,
        *,
        weights: str | None = None,
        threads: int = 1,
        takes: Literal["file", "samples"] = "file",
        max_seconds: float = 300.0,
    ) -> None:
        super().__init__(takes=takes, max_seconds=max_seconds)
        if not (isinstance(threads, int) and threads >= 1):
            raise ConfigError(
                f"must be a whole number of at least 1, not {threads!r}", field="threads"
            )
        self._weights = weights
        self._threads = threads
        self._folder: Path | None = None
        self._voice: Path | None = None

    def setup(self) -> None:
        super().setup()
        if self._weights is not None:
            self._folder = find_weights(self._weights, patterns=_FILES)
            return
        package = MOONSHINE_WEIGHTS.find()
        self._folder = package / "models" / "base-en"
        self._voice = package / "test-data" / "beckett.wav"

    def load(self) -> None:
        folder = self._found
        self._tokens = list(_tokens_in(folder / "tokenizer.bin"))
        self._encoder = encoder_session(folder / "encoder_model.ort", threads=self._threads)
        self._decoder = Decoder(
            decoder_session(folder / "decoder_model_merged.ort", threads=self._threads)
        )

    def files(self) -> list[Path]:
        """What it is made of: a warm-up table counts as long as these are the same."""
        return [self._found / name for name in _FILES]

    def samples(self) -> list[list[float]]:
        """Real speech where there is some: how long a text is decides what a clip costs."""
        if self._voice is None:
            return super().samples()
        with wave.open(str(self._voice)) as file:
            voice = numpy.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        voice = numpy.tile(voice, 1 + SAMPLES_S[-1] * RATE // len(voice))
        return [voice[: seconds * RATE].tolist() for seconds in SAMPLES_S]

    def hear(self, parts: list[Samples]) -> list[str]:
        texts = [""] * len(parts)
        for group in _groups([len(part) for part in parts]):
            states = [self._encode(parts[index]) for index in group]
            most = [int(len(parts[index]) / RATE * _TOKENS_PER_S) + 2 for index in group]
            for index, ids in zip(group, self._decoder.decode(states, most), strict=True):
                texts[index] = self._text(ids)
        return texts

    @property
    def _found(self) -> Path:
        assert self._folder is not None, "setup() comes first"
        return self._folder

    def _encode(self, part: Samples) -> Array:
        if len(part) < _LEAST:
            part = numpy.pad(part, (0, _LEAST - len(part)))
        states: Array = self._encoder.run(None, {"input_values": part[None]})[0]
        return states

    def _text(self, ids: Iterable[int]) -> str:
        spelled = b"".join(self._tokens[each] for each in ids if each < len(self._tokens))
        return spelled.decode("utf-8", "replace")


class Decoder:
    """Writes the texts of several parts at once."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._memory = _Memory()
        names = [each.name for each in session.get_outputs()]
        self._own = [name for name in names if ".decoder." in name]
        self._heard = [name for name in names if ".encoder." in name]
        [heads] = {each.shape[1] for each in session.get_inputs() if ".decoder." in each.name}
        [width] = {each.shape[3] for each in session.get_inputs() if ".decoder." in each.name}
        self._nothing = numpy.zeros((1, heads, 0, width), numpy.float32)

    def decode(self, states: Sequence[Array], most: Sequence[int]) -> list[list[int]]:
        """The tokens of each part, at most so many."""
        starts = [self._start(each) for each in states]
        texts = [[start.token] for start in starts]
        begun = [part for part, text in enumerate(texts) if text != [_END]]
        if begun:
            batch = _Batch([starts[part] for part in begun], begun, self._memory)
            starts.clear()
            while batch.leave(list(self._finished(batch, texts, most))):
                pass
        return [[each for each in text if each != _END] for text in texts]

    def _finished(
        self, batch: "_Batch", texts: Sequence[list[int]], most: Sequence[int]
    ) -> Iterator[int]:
        """One more token for everyone; the rows whose text ends with it."""
        for row, (part, token) in enumerate(zip(batch.parts, self._step(batch), strict=True)):
            texts[part].append(int(token))
            if token == _END or len(texts[part]) >= most[part]:
                yield row

    def _start(self, states: Array) -> "_Start":
        """The first token, and what the decoder will look at in every step."""
        feeds = {
            "input_ids": numpy.array([[_BEGIN]]),
            "encoder_hidden_states": states,
            "use_cache_branch": numpy.array([False]),
            MASK: numpy.zeros((1, 1, 1, states.shape[1]), numpy.float32),
        }
        for name in (*self._own, *self._heard):
            feeds[_past(name)] = self._nothing
        logits, *rest = self._session.run(["logits", *self._own, *self._heard], feeds)
        own, heard = rest[: len(self._own)], rest[len(self._own) :]
        scores = logits[0, -1]
        if states.shape[1] > _SURE_FRAMES:
            # Where the highest tones are missing (a telephone, another rate), it is often a little
            # surer of nothing at all than of the first word.
            scores[_END] = -numpy.inf
        return _Start(
            int(scores.argmax()),
            states[:, :1],
            states.shape[1],
            dict(zip(map(_past, self._own), own, strict=True)),
            dict(zip(map(_past, self._heard), heard, strict=True)),
        )

    def _step(self, batch: "_Batch") -> Array:
        feeds = {**batch.feeds, "input_ids": _value(batch.tokens[:, None])}
        logits, *own = self._session.run_with_ort_values(["logits", *self._own], feeds)
        batch.feeds |= zip(map(_past, self._own), own, strict=True)
        batch.tokens = logits.numpy()[:, -1].argmax(axis=1)
        return batch.tokens


class _Start:
    """One part after its first step."""

    __slots__ = ("frames", "heard", "own", "state", "token")

    def __init__(
        self,
        token: int,
        state: Array,
        frames: int,
        own: dict[str, Array],
        heard: dict[str, Array],
    ) -> None:
        self.token = token
        self.state = state  # steps want one, though only the first looks at them
        self.frames = frames
        self.own = own
        self.heard = heard


class _Batch:
    """The parts whose texts are being written: each in one row of every array."""

    def __init__(self, starts: Sequence[_Start], parts: Sequence[int], memory: "_Memory") -> None:
        self.parts = list(parts)  # of each row
        self.tokens: Array = numpy.array([start.token for start in starts])
        self._states = numpy.concatenate([start.state for start in starts])
        self._frames = numpy.array([start.frames for start in starts])
        self._longest = int(self._frames.max())
        self._heard = {
            name: memory.padded(name, [start.heard[name] for start in starts])
            for name in starts[0].heard
        }
        own = {
            name: numpy.concatenate([start.own[name] for start in starts]) for name in starts[0].own
        }
        self.feeds: dict[str, Any] = {}
        self._lay_out(own)

    def leave(self, finished: Sequence[int]) -> bool:
        """These rows are done. False: all are.

        The last row takes the place of one that has left: one row is copied, no memory is new.
        """
        order = list(range(len(self.parts)))
        for row in reversed(finished):
            last = order.pop()
            if row == len(order):
                continue
            order[row] = last
            for array in self._heard.values():
                array[row] = array[len(order)]
        if finished and order:
            self._keep(order)
        return bool(order)

    def _keep(self, order: list[int]) -> None:
        rows = len(order)
        self.parts = [self.parts[row] for row in order]
        self.tokens, self._frames = self.tokens[order], self._frames[order]
        self._heard = {name: array[:rows] for name, array in self._heard.items()}
        own = {
            name: past.numpy()[order] for name, past in self.feeds.items() if ".decoder." in name
        }
        self._lay_out(own)

    def _lay_out(self, own: Mapping[str, Array]) -> None:
        """What the steps look at; all but their own past stays the same from step to step."""
        rows, frames = len(self.parts), numpy.arange(self._longest)
        mask = numpy.where(frames < self._frames[:, None], 0.0, _NEVER).astype(numpy.float32)
        arrays = {
            **own,
            **self._heard,
            MASK: mask[:, None, None],
            "encoder_hidden_states": self._states[:rows],
            "use_cache_branch": numpy.array([True]),
        }
        self.feeds = {name: _value(array) for name, array in arrays.items()}


class _Memory(threading.local):
    """For what the decoders look at, kept from batch to batch: to get hundreds of megabytes anew
    takes as long as all the steps. Each worker's thread has its own."""

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def padded(self, name: str, arrays: Sequence[Array]) -> Array:
        """One array of all rows. What is there beyond a row's frames is masked, whatever it is,
        as long as it is a number."""
        _, *shape = numpy.max([array.shape for array in arrays], axis=0)
        count = len(arrays) * math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[name] = numpy.zeros(count, numpy.float32)
        whole = buffer[:count].reshape(len(arrays), *shape)
        for row, array in zip(whole, arrays, strict=True):
            row[:, : array.shape[2], : array.shape[3]] = array[0]
        return whole


def _value(array: Array) -> Any:
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _past(name: str) -> str:
    return name.replace("present", "past_key_values")


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The parts that are decoded together, like with like, as many as memory allows."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        if group and (len(group) + 1) * lengths[group[0]] > _MOST_FRAMES * _FRAME:
            yield group
            group = []
        group.append(index)
    yield group


def _tokens_in(path: Path) -> Iterator[bytes]:
    """What each token spells. The file has a length (one byte, or two from 128 on) before each."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    at = 0
    while at < len(content):
        length = content[at]
        at += 1
        if length >= 128:
            length += content[at] * 128 - 128
            at += 1
        yield _spelled(content[at : at + length])
        at += length


def _spelled(token: bytes) -> bytes:
    if re.fullmatch(rb"<0x[0-9A-F]{2}>", token):  # a byte of a character that has no token
        return bytes([int(token[3:5], 16)])
    if re.fullmatch(rb"<.*>", token):  # <s>, </s>, <unk>, <<ST_1>>, …: not part of the text
        return b""
    return token.replace("▁".encode(), b" ")
