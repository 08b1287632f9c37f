"""Speech recognition with folders of Whisper's family, as transformers saves them.

Weights are read from safetensors only, code in the folder is never run, and nothing is downloaded.
Whisper hears windows of 30 seconds, even if they are silent: every part costs its encoder the same,
and a batch needs no masks.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from headway.backends.torch import choose_device, import_torch
from headway.errors import ConfigError
from headway.files import read_optional_json, why_unreadable
from headway.models.ready.speech.audio import RATE, Samples
from headway.models.ready.speech.transcribe import Clip, Heard, SpeechModel
from headway.models.sources.installed import require

_AT_ONCE = 16  # parts


class Whisper(SpeechModel):
    """Options: `device`, `threads`, and those of every speech model. `language` is a parameter of
    a request; callers who differ in it do not share a batch. Absent: the model finds out."""

    batch_parameters: ClassVar[Sequence[str]] = ("language",)

    def __init__(
        self,
        path: Path,
        *,
        device: str = "",
        threads: int = 1,
        takes: Literal["file", "samples"] = "file",
        max_seconds: float = 300.0,
    ) -> None:
        super().__init__(takes=takes, max_seconds=max_seconds)
        if not list(path.glob("*.safetensors")):
            raise ConfigError(f"{path} has no safetensors; pickled weights (*.bin) are not read")
        self._path = path
        self.languages = _languages_in(path)
        self._device_asked = device
        self._threads = threads

    def load(self) -> None:
        torch = self._torch = import_torch()
        transformers = require("transformers", "Whisper models", "torch")
        torch.set_num_threads(self._threads)
        self._device = choose_device(torch, self._device_asked)
        settings = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._processor = transformers.WhisperProcessor.from_pretrained(
                str(self._path), **settings
            )
            model = transformers.WhisperForConditionalGeneration.from_pretrained(
                str(self._path), use_safetensors=True, **settings
            )
        except Exception as error:  # transformers' own, of many kinds
            raise ConfigError(why_unreadable(self._path, error)) from error
        self._model = model.eval().to(self._device)

    def files(self) -> list[Path]:
        return [each for each in self._path.rglob("*") if each.is_file()]

    def predict(self, items: list[Clip], *, language: str = "") -> list[Heard]:
        return self._heard(items, functools.partial(self.hear, language=language))

    def hear(self, parts: list[Samples], *, language: str = "") -> list[str]:
        texts: list[str] = []
        for first in range(0, len(parts), _AT_ONCE):
            texts += self._hear(parts[first : first + _AT_ONCE], language)
        return texts

    def _hear(self, parts: list[Samples], language: str) -> list[str]:
        torch = self._torch
        features = self._processor(
            parts, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True
        )
        # One that hears a single language wants no word on it.
        is_said = language and len(self.languages) != 1
        options: dict[str, Any] = {"language": language} if is_said else {}
        with torch.inference_mode():
            ids = self._model.generate(
                features.input_features.to(self._device),
                attention_mask=features.attention_mask.to(self._device),
                do_sample=False,
                num_beams=1,
                **options,
            )
        texts: list[str] = self._processor.batch_decode(ids, skip_special_tokens=True)
        return texts


def _languages_in(path: Path) -> tuple[str, ...]:
    """The languages that the folder names; empty: it names none."""
    settings = read_optional_json(path / "generation_config.json")
    if settings.get("is_multilingual") is False:
        return ("en",)
    tokens = settings.get("lang_to_id") or {}
    return tuple(token.strip("<|>") for token in tokens)
