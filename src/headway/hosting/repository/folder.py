"""A folder of models: which are there, and whether they have changed. Loads nothing.

    models/
      sentiment/
        model.toml        settings, all optional
        samples.jsonl     typical values for the warm-up, optional
        1/model.onnx      a version: a numbered folder
        2/model.onnx

Nothing outside the repository is read, even if a name or a symbolic link points there.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.hosting import tables
from headway.hosting.repository.settings import NAME as TOML
from headway.hosting.repository.settings import RepositoryModelConfig, read_settings

SAMPLES = "samples.jsonl"
_MODEL = re.compile(r"[A-Za-z0-9][\w.\-]*")
_VERSION = re.compile(r"[1-9]\d{0,17}")
_OF_A_VERSION = frozenset(["model.py", "model.onnx", "model.pt2", "model.safetensors"])
_OF_A_MODEL = _OF_A_VERSION | {TOML, "config.pbtxt"}
_NOT_CONTENT = frozenset(["__pycache__", tables.NAME])
_MOST_FILES = 10_000  # of one model; with more, the folder is something else


@dataclass(frozen=True, slots=True)
class VersionFolder:
    version: int
    path: Path
    files: tuple[Path, ...]
    fingerprint: str
    error: str | None = None  # why it cannot be loaded


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model as it is on disk. If it has an `error`, it cannot be used at all."""

    name: str
    config: RepositoryModelConfig
    versions: Mapping[int, VersionFolder]
    samples: Path | None = None
    error: str | None = None


class Repository:
    """A folder of models."""

    def __init__(self, root: str | Path, *, settings: Mapping[str, Any] | None = None) -> None:
        """`settings`: for every model, before its own."""
        self._root = Path(root).expanduser().resolve()
        if not self._root.is_dir():
            raise ConfigError(f"{root} is not a folder", field="repository")
        self._settings = settings or {}

    def scan(self) -> dict[str, ModelFolder]:
        """Every model. A folder without a version or a model's file is not one."""
        try:
            names = sorted(os.listdir(self._root))
        except OSError as error:
            raise ConfigError(f"{self._root}: {error.strerror}", field="repository") from error
        return {name: model for name in names if (model := self.find(name)) is not None}

    def check(self) -> None:
        """Raise ConfigError if the repository has files, but nothing that looks like a model."""
        if not self.scan() and os.listdir(self._root):
            raise ConfigError(
                f"{self._root} has no models: a folder for each is expected, in it a folder for "
                "each version (1, 2, …), in that model.py, model.onnx, …",
                field="repository",
            )

    def find(self, name: str) -> ModelFolder | None:
        """The model of this name; None: there is none."""
        if not _MODEL.fullmatch(name) or ".." in name:
            return None
        path = self._root / name
        try:
            if not self._is_model(path):
                return None
            self._check_inside(path)
            config = read_settings(path / TOML, over=self._settings)
            if config.name not in ("", name):
                raise ConfigError(f"{path / TOML}: it is for {config.name!r}, not {name!r}")
            versions = self._versions(path, config)
            if not versions and (found := _OF_A_VERSION.intersection(os.listdir(path))):
                raise ConfigError(
                    f"{path} has no version: move {min(found)} and its neighbours to {path / '1'}"
                )
            return ModelFolder(name, config, versions, self._samples(path))
        except (ConfigError, OSError) as error:
            return ModelFolder(name, RepositoryModelConfig(), {}, error=str(error))

    def _is_model(self, path: Path) -> bool:
        if not path.is_dir():
            return False
        names = os.listdir(path)
        return any(each in _OF_A_MODEL or _VERSION.fullmatch(each) for each in names)

    def _versions(self, model: Path, config: RepositoryModelConfig) -> dict[int, VersionFolder]:
        shared = hashlib.sha256(repr(config).encode())
        samples = model / SAMPLES
        if samples.is_file():
            shared.update(_stamp(samples))
        return {
            int(name): self._version(model / name, shared.copy())
            for name in os.listdir(model)
            if _VERSION.fullmatch(name) and (model / name).is_dir()
        }

    def _version(self, path: Path, fingerprint: Any) -> VersionFolder:
        error = None
        files: list[Path] = []
        try:
            self._check_inside(path)
            for file in self._files(path):
                files.append(file)
                fingerprint.update(str(file.relative_to(path)).encode() + _stamp(file))
        except (ConfigError, OSError) as problem:
            error = str(problem)
            fingerprint.update(error.encode())
        return VersionFolder(
            int(path.name), path, tuple(sorted(files)), fingerprint.hexdigest(), error
        )

    def _files(self, folder: Path) -> Iterator[Path]:
        """All files below, in a stable order. A link may only point into the repository."""
        count = 0
        for path, folders, names in os.walk(folder):
            folders[:] = sorted(each for each in folders if each not in _NOT_CONTENT)
            for name in folders:
                if (link := Path(path, name)).is_symlink():
                    raise ConfigError(f"{link} is a link to a folder; only files may be linked")
            for name in sorted(names):
                if name in _NOT_CONTENT or name.startswith(f".{tables.NAME}"):
                    continue
                count += 1
                if count > _MOST_FILES:
                    raise ConfigError(f"{folder} has more than {_MOST_FILES} files")
                file = Path(path, name)
                self._check_inside(file)
                yield file

    def _samples(self, model: Path) -> Path | None:
        path = model / SAMPLES
        if not path.is_file():
            return None
        self._check_inside(path)
        return path

    def _check_inside(self, path: Path) -> None:
        if not path.resolve().is_relative_to(self._root):
            raise ConfigError(f"{path} leads outside the repository")


def _stamp(file: Path) -> bytes:
    stat = file.stat()
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino};".encode()
