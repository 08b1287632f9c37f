"""Speech to text: what every such model has in common.

A clip comes as the bytes of a file or as samples, is cut where it is longer than the model hears at
once, and its parts' texts are joined. What hears the parts is each model's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy

from headway.errors import ConfigError, InvalidInput
from headway.model import Model, Tensor
from headway.models.ready.speech.audio import (
    RATE,
    Cut,
    Samples,
    check_samples,
    cuts_of,
    import_audio,
    read_audio,
    resample,
    too_long,
)

Hear: TypeAlias = Callable[[list[Samples]], Sequence[str]]  # the text of each part
SAMPLES_S = (10, 40)  # clips to time a model with
_SILENCE = 1e-4  # of full scale: a clip that is never louder has no speech


@dataclass(frozen=True, slots=True)
class Clip:
    """An item of a batch: the samples, and the parts that are transcribed one by one."""

    samples: Samples
    cuts: list[Cut]


@dataclass(frozen=True, slots=True)
class Segment:
    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Heard:
    """The texts as they come from the worker."""

    segments: list[Segment]
    duration_s: float


class Transcript(str):
    """The text, and the times of its parts."""

    duration_s: float
    language: str  # empty: not known
    segments: tuple[Segment, ...]


class SpeechModel(Model[Clip, Heard]):
    """Options: `takes` (`file`: v2 tensors hold the bytes of files; `samples`: float32 at 16 kHz),
    `max_seconds` (longer clips are refused)."""

    writes_inputs: ClassVar[bool] = False
    # A clip of five minutes is 19 MB once it is unpacked, and only the file's bytes were counted.
    batcher_options: ClassVar[Mapping[str, Any]] = {"max_queue": 64}
    languages: Sequence[str] = ()  # that a caller may name; none: the model finds out itself
    heard_s: float = 30.0  # the most that it hears at once
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] = (Tensor("text", "object", (-1,)),)

    def __init__(
        self, *, takes: Literal["file", "samples"] = "file", max_seconds: float = 300.0
    ) -> None:
        if takes not in ("file", "samples"):
            raise ConfigError(f"{takes!r} is not one of 'file', 'samples'", field="takes")
        if not 1 <= max_seconds <= 3600:
            raise ConfigError(f"must be from 1 to 3600, not {max_seconds}", field="max_seconds")
        is_file = takes == "file"
        self.inputs = (
            Tensor("audio", "object", (-1,)) if is_file else Tensor("audio", "float32", (-1, -1)),
        )
        self.max_seconds = max_seconds

    def setup(self) -> None:
        import_audio()

    def samples(self) -> list[list[float]]:
        """Clips to time the model with: a voice-like hum, of one part and of two."""
        time = numpy.arange(SAMPLES_S[-1] * RATE) / RATE
        voice = numpy.sin(2 * numpy.pi * 140 * time) * numpy.sin(2 * numpy.pi * 3 * time) * 0.1
        return [voice[: seconds * RATE].tolist() for seconds in SAMPLES_S]

    def prepare(
        self, raw: bytes | list[float], *, sample_rate: int = RATE, language: str = ""
    ) -> Clip:
        """`sample_rate` is that of samples; a file says its own."""
        if language and str(language).lower() not in self.languages:
            known = f"there are: {', '.join(self.languages)}"
            hint = known if self.languages else "leave it out: the model recognizes the language"
            raise InvalidInput(f"language: {language!r} is not supported; {hint}")
        if isinstance(raw, bytes):
            samples = read_audio(raw, max_s=self.max_seconds)
        else:
            try:
                samples = numpy.asarray(raw, numpy.float32)
            except (TypeError, ValueError) as error:
                raise InvalidInput(f"input 'audio': samples are expected: {error}") from error
            if samples.size > self.max_seconds * max(sample_rate, 0):
                raise too_long(self.max_seconds)  # before it grows
            samples = check_samples(resample(samples, sample_rate), max_s=self.max_seconds)
        return Clip(samples, cuts_of(samples, most_s=self.heard_s))

    def size(self, item: Clip) -> int:
        """Samples, and at least those of one part: parts of any length share a batch, since none
        is padded to another. Longer clips go with their like."""
        return max(len(item.samples), int(self.heard_s * RATE))

    def predict(self, items: list[Clip]) -> list[Heard]:
        return self._heard(items, self.hear)

    def _heard(self, items: list[Clip], hear: Hear) -> list[Heard]:
        parts = [(clip, cut) for clip in items for cut in clip.cuts]
        texts = iter(_texts([clip.samples[cut.start : cut.stop] for clip, cut in parts], hear))
        return [
            Heard(
                [Segment(cut.start / RATE, cut.stop / RATE, next(texts)) for cut in clip.cuts],
                len(clip.samples) / RATE,
            )
            for clip in items
        ]

    def finish(self, result: Heard) -> Transcript:
        text = Transcript(" ".join(each.text for each in result.segments if each.text))
        text.duration_s = result.duration_s
        text.segments = tuple(result.segments)
        text.language = self.languages[0] if len(self.languages) == 1 else ""
        return text

    def hear(self, parts: list[Samples]) -> Sequence[str]:
        """The text of each part, none longer than `heard_s`."""
        raise NotImplementedError


def _texts(parts: list[Samples], hear: Hear) -> list[str]:
    """The text of each part. Silence has none, and costs nothing."""
    loud = [index for index, part in enumerate(parts) if numpy.abs(part).max() > _SILENCE]
    texts = [""] * len(parts)
    if loud:
        for index, text in zip(loud, hear([parts[each] for each in loud]), strict=True):
            texts[index] = text.strip()
    return texts
