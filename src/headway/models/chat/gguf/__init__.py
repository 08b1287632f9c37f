"""GGUF files, turned into a folder as `transformers` saves one: weights, a tokenizer, a
configuration. Once, into a cache; afterwards the folder is all that is read.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from headway.errors import ConfigError
from headway.models.chat.gguf.metadata import Metadata
from headway.models.chat.gguf.model import configuration
from headway.models.chat.gguf.tensors import (
    ROPE_FACTORS,
    Converted,
    TooLargeForFloat16,
    stored,
    write,
)
from headway.models.chat.gguf.vocabulary import GgufVocabulary
from headway.models.sources.installed import require
from headway.models.sources.unfinished import unfinished_folder

CONVERTER = 3  # raise when what is written changes: the cache is keyed by it
_NO_DEFAULTS: Mapping[str, float] = {}
# What the model's makers recommend, by the names that GGUF files have for it.
_RECOMMENDED = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_log = logging.getLogger(__name__)


def converted(file: Path, cache: Path, defaults: Mapping[str, float] = _NO_DEFAULTS) -> Path:
    """The folder for a GGUF file, made now if it is not in the cache yet. Raises ConfigError.

    `defaults`: of sampling, where the file recommends none.
    """
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256")
    digest.update(json.dumps(sorted(defaults.items())).encode() if defaults else b"")
    folder = cache / "gguf" / f"{digest.hexdigest()[:32]}-{CONVERTER}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written elsewhere and moved: a process that finds the folder finds it whole.
    try:
        with unfinished_folder(folder.parent, "unfinished-") as unfinished:
            _convert(file, unfinished, defaults)
            os.rename(unfinished, folder)
    except ConfigError:
        raise
    except OSError:
        if not folder.is_dir():  # else another process was first
            raise
    except Exception as error:  # a file may hold anything
        raise ConfigError(f"{file} is not a readable GGUF file: {error}") from error
    return folder


def _convert(file: Path, folder: Path, defaults: Mapping[str, float]) -> None:
    gguf = require("gguf", "GGUF files", "llm")

    class Reader(gguf.GGUFReader):  # type: ignore[misc, name-defined]  # at run time
        """Its own takes what is left of the file for the whole of what it reads."""

        def _get(self, offset: int, dtype: Any, count: int = 1, **more: Any) -> Any:
            end, size = offset + numpy.dtype(dtype).itemsize * int(count), len(self.data)
            if end > size:
                raise ConfigError(f"{file}: the file ends after {size} of at least {end} bytes")
            return super()._get(offset, dtype, count, **more)

    try:
        reader = Reader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{file} is not a readable GGUF file: {error}") from error
    metadata = Metadata(fields, file)
    factors = next((each.data for each in reader.tensors if each.name == ROPE_FACTORS), None)
    # The architecture first: a file of another kind is refused as what it is.
    config = configuration(
        metadata, vocabulary=len(metadata.get("tokenizer.ggml.tokens", [])), rope_factors=factors
    )
    vocabulary = GgufVocabulary(metadata)
    tokenizer = vocabulary.tokenizer()
    template = metadata.get("tokenizer.chat_template")
    recommended = {
        name: value
        for key, name in _RECOMMENDED.items()
        if (value := metadata.get(f"general.sampling.{key}")) is not None
    }
    metadata.check_all_used()
    _write_tensors(reader.tensors, config, metadata, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {name: vocabulary.tokens[id_] for name, id_ in vocabulary.named.items()}
    _write(folder / "tokenizer_config.json", {**special, "chat_template": template})
    ends = {"eos_token_id": vocabulary.ends[0] if len(vocabulary.ends) == 1 else vocabulary.ends}
    _write(folder / "generation_config.json", {**ends, **defaults, **recommended})
    bos = {"bos_token_id": vocabulary.named.get("bos_token")}
    _write(folder / "config.json", {**config, **bos, **ends})


def _write_tensors(
    tensors: Sequence[Any], config: dict[str, Any], metadata: Metadata, folder: Path
) -> None:
    wide: frozenset[str] = frozenset()
    while True:
        found = stored(tensors, config, metadata, wide)
        _check_room(found, metadata, folder)
        try:
            write(found, folder / "model.safetensors")
        except TooLargeForFloat16 as error:
            wide |= {error.name}
        else:
            return


def _check_room(tensors: Sequence[Converted], metadata: Metadata, folder: Path) -> None:
    """Log how large the folder becomes, and refuse if the disk has not enough room."""
    size = sum(each.size for each in tensors) + 2**26  # and what is beside the tensors
    free = shutil.disk_usage(folder).free
    place = folder.parent
    if size > free:
        raise metadata.refusal(
            f"it becomes a folder of {_gigabytes(size)} in {place}, which has room for"
            f" {_gigabytes(free)}"
        )
    _log.info("%s becomes a folder of %s in %s", metadata.file, _gigabytes(size), place)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))
