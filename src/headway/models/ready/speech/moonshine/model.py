"""Speech recognition with Moonshine (base, English): a clip in, its text out. Runs on onnxruntime.

The encoder hears each part by itself and unpadded: batching it would gain nothing on a CPU. The
decoder writes all texts together, a token of each in a step; a text that is finished leaves.
"""

import re
import wave
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy

from headway.errors import ConfigError
from headway.models.ready.speech.audio import RATE, Samples
from headway.models.ready.speech.moonshine.decoder import MoonshineDecoder, blocks_of
from headway.models.ready.speech.moonshine.encoder import has_fast_int8
from headway.models.ready.speech.moonshine.graph import BLOCK, decoder_sessions, encoder_session
from headway.models.ready.speech.transcribe import SAMPLES_S, SpeechModel
from headway.models.sources.weights import PackagedWeights, find_weights

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
_TOKENS_PER_S = 6.5  # nobody speaks faster: this stops a decoder that repeats itself
_LEAST = RATE // 2  # samples; silence is added to less
_FRAME = 384  # samples
_MOST_FRAMES = 20_480  # in one decoding, with those that fill blocks: keys and values of 550 MB


class Moonshine(SpeechModel):
    """Options: `weights` (a folder with encoder_model.ort, decoder_model_merged.ort and
    tokenizer.bin; by default the pinned package), `threads` (of one batch), `precision` (of the
    encoder's linear layers: `int8`, `float32`, or `auto`: int8 where the CPU is fast with it), and
    those of every speech model."""

    languages = ("en",)

    def __init__(
        self,
        *,
        weights: str | None = None,
        threads: int = 1,
        precision: Literal["auto", "int8", "float32"] = "auto",
        takes: Literal["file", "samples"] = "file",
        max_seconds: float = 300.0,
    ) -> None:
        super().__init__(takes=takes, max_seconds=max_seconds)
        if not (isinstance(threads, int) and threads >= 1):
            raise ConfigError(
                f"must be a whole number of at least 1, not {threads!r}", field="threads"
            )
        if precision not in ("auto", "int8", "float32"):
            raise ConfigError(
                f"{precision!r} is not one of 'auto', 'int8', 'float32'", field="precision"
            )
        self._is_int8 = precision == "int8" or (precision == "auto" and has_fast_int8())
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
        self._encoder = encoder_session(
            folder / "encoder_model.ort", threads=self._threads, is_int8=self._is_int8
        )
        self._decoder = MoonshineDecoder(
            *decoder_sessions(
                folder / "decoder_model_merged.ort", threads=self._threads, is_int8=self._is_int8
            )
        )

    def files(self) -> list[Path]:
        """The model's files: a warm-up table holds as long as these are the same."""
        return [self._found / name for name in _FILES]

    def samples(self) -> list[list[float]]:
        """Real speech if there is a sample: a clip's cost depends on the length of its text."""
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


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The parts that are decoded together, like with like, as many as memory allows."""
    group: list[int] = []
    frames = 0
    for index in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        more = blocks_of(1 + lengths[index] // _FRAME) * BLOCK
        if group and frames + more > _MOST_FRAMES:
            yield group
            group, frames = [], 0
        group.append(index)
        frames += more
    yield group


def _tokens_in(path: Path) -> Iterator[bytes]:
    """The bytes of each token. In the file, a length (one byte, or two from 128 on) precedes
    each."""
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
