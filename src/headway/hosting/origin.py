"""The origin of a model, and the place of its warm-up table."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.config import ModelConfig
from headway.hosting import tables
from headway.hosting.tables import TableStore
from headway.model import Model, TensorModel
from headway.models.catalogue import AnyModel


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
        places = [] if self.folder is None else [self.folder / tables.NAME]
        if self.cache_dir is not None:
            places.append(tables.in_cache(self.cache_dir, config.name, files))
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
