"""Moonshine without a server: in both precisions, alone and in company."""

import wave
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("soundfile")

from headway.errors import ConfigError
from headway.models.ready.speech.moonshine import MOONSHINE_WEIGHTS, Moonshine
from headway.models.ready.speech.moonshine import model as moonshine
from headway.models.ready.speech.moonshine.encoder import has_fast_int8

if not MOONSHINE_WEIGHTS.is_installed:
    pytest.skip("the weights are not installed", allow_module_level=True)

RATE = 16_000
TEXT = "Ever tried ever failed, no matter try again fail again fail better."
BLOCK = 128 * 384  # samples of a block of frames


@pytest.fixture(scope="module")
def voice() -> Any:
    path = MOONSHINE_WEIGHTS.find() / "test-data" / "beckett.wav"
    with wave.open(str(path)) as file:
        samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2")
    return (samples / 32768).astype(numpy.float32)


@pytest.fixture(scope="module", params=["int8", "float32"])
def model(request: pytest.FixtureRequest) -> Moonshine:
    if request.param == "int8" and not has_fast_int8():
        pytest.skip("without VNNI, sums may overflow")
    made = Moonshine(precision=request.param)
    made.setup()
    made.load()
    return made


def test_a_clip_becomes_its_text_in_either_precision(model: Moonshine, voice: Any) -> None:
    assert [text.strip() for text in model.hear([voice])] == [TEXT]


def test_clips_of_one_block_and_of_many_say_together_what_they_say_alone(
    model: Moonshine, voice: Any
) -> None:
    """Around the edges of blocks, and so that rows leave from the front, the middle and the end."""
    lengths = [3 * BLOCK, BLOCK - 384, RATE // 4, BLOCK + 500, len(voice), 2 * BLOCK + 1000, 20_000]
    parts = [voice[-length:] if at % 2 else voice[:length] for at, length in enumerate(lengths)]
    alone = [model.hear([part])[0] for part in parts]
    assert model.hear(parts) == alone
    assert model.hear(parts[::-1]) == alone[::-1]
    assert len(set(alone)) > 4


def test_what_does_not_fit_into_memory_at_once_is_heard_in_turns(
    model: Moonshine, voice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [voice, voice[: 4 * RATE], voice[: 3 * RATE]]
    at_once = model.hear(parts)
    monkeypatch.setattr(moonshine, "_MOST_FRAMES", 256)
    assert model.hear(parts) == at_once


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="'int4' is not one of") as caught:
        Moonshine(precision="int4")  # type: ignore[arg-type]
    assert caught.value.field == "precision"


def test_files_of_another_model_are_refused_by_name(tmp_path: Path) -> None:
    """The decoder where the encoder should be: it loads, but has none of the layers."""
    folder = MOONSHINE_WEIGHTS.find() / "models" / "base-en"
    for name in ("encoder_model.ort", "decoder_model_merged.ort"):
        (tmp_path / name).write_bytes((folder / "decoder_model_merged.ort").read_bytes())
    (tmp_path / "tokenizer.bin").write_bytes((folder / "tokenizer.bin").read_bytes())
    model = Moonshine(weights=str(tmp_path))
    model.setup()
    with pytest.raises(ConfigError, match=r"encoder_model\.ort: it is not the encoder"):
        model.load()
