"""Warm-up tables on disk: kept beside the model, or in a cache where its folder is read-only.

A table is valid for the weights, device, library versions and settings that it was measured with,
and ignored for any other.
"""

import dataclasses
import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.config import ModelConfig
from headway.core.costs import CostTable
from headway.errors import ConfigError
from headway.files import cache_folder
from headway.machine import device_name
from headway.model import Model, TensorModel
from headway.models.catalogue import AnyModel

_log = logging.getLogger(__name__)
NAME = "warm-up.json"  # beside the model
_LIBRARIES = ("numpy", "onnxruntime", "tokenizers", "torch", "transformers")
_FORMAT = 2  # since 2, the size of a padded tensor is its length


class TableStore:
    """The place of one model's table."""

    def __init__(
        self, *, files: Sequence[Path], settings: Mapping[str, Any], places: Sequence[Path]
    ) -> None:
        self._files = sorted(set(files))
        self._settings = settings
        self._places = places  # the first that can be written is used

    def load(self) -> CostTable | None:
        """The table of an earlier start, where it still counts."""
        for place in self._places:
            found = self._read(place)
            if found is not None:
                return found
        return None

    def save(self, table: CostTable) -> Path | None:
        """The path of the saved table; None: it could not be saved, and the next start measures
        again."""
        try:
            document = {
                **table.to_json(),
                "errors": [round(error, 6) for error in table.errors],
                "measured_with": {**self._circumstances(), "weights": _digest(self._files)},
                "files": _stamps(self._files),
            }
        except OSError as error:
            _log.warning("the warm-up table is not kept: %s", error)
            return None
        for place in self._places:
            if _write(place, json.dumps(document) + "\n"):
                return place
        _log.info("the warm-up table is not kept: none of %s can be written", self._places)
        return None

    def _read(self, place: Path) -> CostTable | None:
        try:
            document = json.loads(place.read_bytes())
            measured_with = document["measured_with"]
            weights = measured_with.pop("weights")
            if measured_with != self._circumstances():
                return None
            if document["files"] != _stamps(self._files) and weights != _digest(self._files):
                return None
            errors = tuple(float(error) for error in document["errors"])
            return dataclasses.replace(CostTable.from_json(document), errors=errors)
        except FileNotFoundError:
            return None
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,  # JSON that is nested too deep
            OverflowError,  # and numbers that are no times
            ConfigError,
        ) as error:
            _log.warning("%s is not a warm-up table: %r; the model is measured again", place, error)
            return None

    def _circumstances(self) -> dict[str, Any]:
        """Everything that must be equal for a table to be used, beside the weights."""
        found = {
            "format": _FORMAT,
            "device": device_name(),
            "cores": os.cpu_count(),
            "python": sys.version.split()[0],
            "libraries": {
                name: str(getattr(sys.modules[name], "__version__", ""))
                for name in _LIBRARIES
                if name in sys.modules
            },
            "settings": dict(self._settings),
        }
        as_read: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return as_read


def cache_dir_of(asked: str) -> Path:
    """The folder for tables that cannot be kept beside their model; empty: the default."""
    if asked:
        return Path(asked).expanduser()
    return cache_folder()


def in_cache(cache_dir: Path, name: str, files: Sequence[Path]) -> Path:
    """The model's own file in the cache. Its name stays the same, so old tables do not pile up."""
    where = hashlib.sha256("\n".join(map(str, sorted(files))).encode()).hexdigest()[:12]
    return cache_dir / "warm-up" / f"{name}-{where}.json"


def _stamps(files: Sequence[Path]) -> list[list[Any]]:
    """The files' stamps. Unchanged stamps mean unchanged files, so weights need not be read."""
    stamps = []
    for file in files:
        stat = file.stat()
        stamps.append([str(file), stat.st_size, stat.st_mtime_ns])
    return stamps


def _digest(files: Sequence[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()


def _write(place: Path, text: str) -> bool:
    """Write it atomically: a crash leaves no half of a table."""
    temporary = ""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=place.parent, prefix=f".{place.name}.", delete=False
        ) as file:
            temporary = file.name
            file.write(text)
        os.replace(temporary, place)
    except OSError:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
        return False
    return True


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """A model's origin. Its table is kept beside its files, and holds as long as they are the
    same."""

    make: Callable[[], AnyModel] | None = None  # slow; in any process
    folder: Path | None = None
    files: tuple[Path, ...] = ()  # none: the model's own `files()`, or its module
    samples: Path | None = None
    cache_dir: Path | None = None  # None: nothing is kept but beside the model

    def table_store(
        self, config: ModelConfig, model: "Model[Any, Any] | TensorModel", max_batch_size: int
    ) -> TableStore | None:
        """The place for measured batch times; None: nowhere."""
        files = self.files or model_files(model)
        places = [] if self.folder is None else [self.folder / NAME]
        if self.cache_dir is not None:
            places.append(in_cache(self.cache_dir, config.name, files))
        if not (files and places):
            return None
        kind = type(model)
        settings = {
            # One file may hold several models, with different batch times.
            "model": f"{config.target} {kind.__module__}.{kind.__qualname__}",
            "rows": [max_batch_size, *config.batch_sizes],
            "workers": config.workers,
            "options": config.options,
        }
        return TableStore(files=files, settings=settings, places=places)


def model_files(model: "Model[Any, Any] | TensorModel") -> list[Path]:
    """The files of the model: its own `files()`, else the module that defines it."""
    own: Callable[[], Sequence[str | Path]] | None = getattr(model, "files", None)
    if own is not None:
        return [Path(each) for each in own()]
    file = getattr(sys.modules.get(type(model).__module__), "__file__", None)
    return [] if file is None else [Path(file)]
