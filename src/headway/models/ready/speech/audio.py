"""Sound from files to what speech models hear: one channel, 16,000 samples a second, as float32.

Files are read by libsndfile, piece by piece: what a few bytes unpack to is limited before it is in
memory. It knows nothing of models.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy

from headway.errors import InputTooLarge, InvalidInput
from headway.models.sources.installed import require

Samples: TypeAlias = "numpy.ndarray[Any, numpy.dtype[numpy.float32]]"
RATE = 16_000
KINDS = "wav, flac, ogg, mp3"
_RATES = (1_000, 192_000)
_MOST_CHANNELS = 32
_UNPACKED_RATE = 192_000  # numbers for each second that is allowed: four channels of 48 kHz
_BLOCK = 2**16
_FRAME = RATE // 50  # 20 ms: how long a pause must at least be to be cut at


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a clip, in samples."""

    start: int
    stop: int


def read_audio(content: bytes, *, max_s: float) -> Samples:
    """The sound in a file's bytes. Raises InvalidInput, InputTooLarge."""
    soundfile, soxr = import_audio()
    if not content:
        raise InvalidInput("the audio file is empty")
    if not _is_known(content):
        raise InvalidInput(f"this is not readable audio ({KINDS})")
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            _check_kind(file)
            blocks = _mono_blocks(file, max_s)
            samples = numpy.concatenate(list(_resampled(soxr, blocks, file.samplerate)))
    except soundfile.LibsndfileError as error:
        raise InvalidInput(f"this is not readable audio ({KINDS}): {error}") from error
    return check_samples(samples, max_s=max_s)


def _is_known(content: bytes) -> bool:
    """The library reads more formats; each would be one more parser that strangers can attack."""
    is_mpeg = content[0] == 0xFF and len(content) > 1 and content[1] & 0xE0 == 0xE0
    return is_mpeg or content.startswith((b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3"))


def resample(samples: Samples, rate: int) -> Samples:
    """Convert samples from any rate to ours."""
    if not _RATES[0] <= rate <= _RATES[1]:
        raise InvalidInput(f"a sample rate of {rate} Hz; from {_RATES[0]} to {_RATES[1]} is taken")
    if rate == RATE:
        return samples
    _, soxr = import_audio()
    made: Samples = soxr.resample(samples, rate, RATE)
    return made


def check_samples(samples: Samples, *, max_s: float) -> Samples:
    """Raises InvalidInput, InputTooLarge."""
    if not samples.size:
        raise InvalidInput("the audio has no samples")
    if samples.size > max_s * RATE:
        raise too_long(max_s)
    if not numpy.isfinite(samples).all():
        raise InvalidInput("the audio has samples that are not finite numbers")
    return samples


def too_long(max_s: float) -> InputTooLarge:
    return InputTooLarge(
        f"the audio is longer than {max_s:g} seconds (max_seconds)", limit=int(max_s)
    )


def cuts_of(samples: Samples, *, most_s: float) -> list[Cut]:
    """Parts of at most `most_s`, cut where it is quietest in the last third of each."""
    most, parts, start = int(most_s * RATE), list[Cut](), 0
    while len(samples) - start > most:
        first = start + 2 * most // 3
        frames = samples[first : start + most]
        frames = frames[: len(frames) // _FRAME * _FRAME].reshape(-1, _FRAME)
        quietest = int(numpy.square(frames).sum(axis=1).argmin())
        stop = first + quietest * _FRAME + _FRAME // 2
        parts.append(Cut(start, stop))
        start = stop
    return [*parts, Cut(start, len(samples))]


def import_audio() -> tuple[Any, Any]:
    """Import soundfile and soxr."""
    soundfile, soxr = (require(name, "speech models", "speech") for name in ("soundfile", "soxr"))
    return soundfile, soxr


def _check_kind(file: Any) -> None:
    if file.channels > _MOST_CHANNELS:
        raise InvalidInput(f"the audio has {file.channels} channels; at most {_MOST_CHANNELS}")
    if not _RATES[0] <= file.samplerate <= _RATES[1]:
        raise InvalidInput(
            f"the audio has {file.samplerate} samples a second; from {_RATES[0]} to {_RATES[1]} "
            "are taken"
        )


def _mono_blocks(file: Any, max_s: float) -> Iterator[Samples]:
    """Blocks of samples, up to a limit: the length in the file's header is not trusted."""
    left_frames, left_numbers = max_s * file.samplerate, max_s * _UNPACKED_RATE
    # Not `file.blocks`: that believes the head, and repeats its buffer where a file was cut off.
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        left_frames -= len(block)
        left_numbers -= block.size
        if left_frames < 0 or left_numbers < 0:
            raise too_long(max_s)
        yield block[:, 0] if block.shape[1] == 1 else block.mean(axis=1)


def _resampled(soxr: Any, blocks: Iterator[Samples], rate: int) -> Iterator[Samples]:
    yield numpy.zeros(0, numpy.float32)
    if rate == RATE:
        yield from blocks
        return
    stream = soxr.ResampleStream(rate, RATE, 1)
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(numpy.zeros(0, numpy.float32), last=True)
