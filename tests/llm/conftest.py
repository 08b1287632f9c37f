"""Tests of the engine. They need torch and transformers: `make test-llm` has an environment."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serving import Serving

collect_ignore_glob: list[str] = []
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers", "safetensors")):
    collect_ignore_glob += ["test_*.py", "*/test_*.py"]
else:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of random weights."""
    from models import build

    return build("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def served(folder: Path) -> "Iterator[Serving]":
    """The same behind a server."""
    from serving import serving

    with serving(folder) as found:
        yield found
