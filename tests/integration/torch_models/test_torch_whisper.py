"""A Whisper with random weights, made here, hears the same alone and in company.

`make test-torch` runs it. What such a model writes means nothing; that it is the same text does.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest

if not os.environ.get("TEST_TORCH"):
    pytest.skip("make test-torch runs these", allow_module_level=True)
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("soundfile")

import headway  # noqa: E402 - once we know that its needs are there
from headway.errors import ConfigError, InputTooLarge, InvalidInput  # noqa: E402
from headway.models.catalogue import build  # noqa: E402

pytestmark = [pytest.mark.real_time, pytest.mark.filterwarnings("default")]
RATE = 16_000
SPECIALS = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>"]
SPECIALS += ["<|notimestamps|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "whisper"
    path.mkdir()
    torch.manual_seed(0)
    letters = [chr(each) for each in range(ord("a"), ord("z") + 1)]
    words = {word: number for number, word in enumerate([*letters, *SPECIALS])}
    (path / "vocab.json").write_text(json.dumps(words))
    (path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.WhisperTokenizer(
        str(path / "vocab.json"),
        str(path / "merges.txt"),
        unk_token="<|endoftext|>",
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIALS[1:]})
    extractor = transformers.WhisperFeatureExtractor(feature_size=20)
    end = words["<|endoftext|>"]
    settings = transformers.WhisperConfig(
        vocab_size=len(words),
        num_mel_bins=20,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_target_positions=24,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=words["<|startoftranscript|>"],
        init_std=0.6,
    )
    model = transformers.WhisperForConditionalGeneration(settings)
    model.generation_config.max_length = 16
    model.generation_config.is_multilingual = False
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    model.generation_config.no_timestamps_token_id = words["<|notimestamps|>"]
    model.save_pretrained(path)
    transformers.WhisperProcessor(extractor, tokenizer).save_pretrained(path)
    return path


def clips() -> list[Any]:
    chance = numpy.random.default_rng(0)
    lengths = [RATE, 3 * RATE, 10 * RATE, 45 * RATE]
    return [chance.normal(0, 0.1 * (n + 1), size).astype("f4") for n, size in enumerate(lengths)]


async def test_a_batch_says_what_each_clip_says_alone(folder: Path) -> None:
    async with headway.Batcher[Any, Any](build(str(folder), {}), max_batch_size=8) as batcher:
        together = await batcher.many(clips())
        alone = [await batcher.submit(clip) for clip in clips()]
        assert together == alone
        assert any(alone)
        assert [len(each.segments) for each in alone] == [1, 1, 1, 2]
        with pytest.raises(InvalidInput, match="not readable audio"):
            await batcher.submit(b"hello")
        with pytest.raises(InputTooLarge, match="longer than 300 seconds"):
            await batcher.submit(numpy.ones(301 * RATE, "f4"))


async def test_a_language_that_is_not_heard_is_the_callers_mistake(folder: Path) -> None:
    async with headway.Batcher[Any, Any](build(str(folder), {})) as batcher:
        one = clips()[0]
        assert await batcher.submit(one, parameters={"language": "en"}) == await batcher.submit(one)
        with pytest.raises(InvalidInput, match="'xx' is not supported; there are: en"):
            await batcher.submit(one, parameters={"language": "xx"})


async def test_a_language_is_refused_where_the_folder_names_none(
    folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    settings = json.loads((copy / "generation_config.json").read_text())
    del settings["is_multilingual"]
    (copy / "generation_config.json").write_text(json.dumps(settings))
    async with headway.Batcher[Any, Any](build(str(copy), {})) as batcher:
        with pytest.raises(InvalidInput, match="'en' is not supported; leave it out"):
            await batcher.submit(clips()[0], parameters={"language": "en"})


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="pickled weights"):
        build(str(tmp_path), {})
