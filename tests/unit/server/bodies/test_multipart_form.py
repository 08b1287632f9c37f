"""Uploads where nothing is installed to read them, or another library."""

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from headway.errors import NotInstalled
from headway.server.bodies import multipart_form
from headway.server.bodies.multipart_form import read_form


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    multipart_form._import.cache_clear()
    yield
    multipart_form._import.cache_clear()
    sys.modules.pop("multipart", None)


def test_without_multipart_the_answer_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "multipart", None)
    monkeypatch.setattr(importlib.metadata, "distribution", _absent)
    with pytest.raises(NotInstalled, match=r"cannot read uploads .*headway\[multipart\]"):
        read_form("multipart/form-data; boundary=x", b"--x--\r\n")


FORM = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'


def test_uploads_are_read_where_python_multipart_is_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI's library has a module of the same name, and other names in it."""
    pytest.importorskip("multipart")
    (tmp_path / "multipart").mkdir()
    (tmp_path / "multipart" / "__init__.py").write_text(
        "class FormParser: ...\ndef parse_options_header(value): return value, {}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "multipart", raising=False)
    assert read_form("multipart/form-data; boundary=x", FORM).fields == {"a": ["b"]}
    monkeypatch.setattr(importlib.metadata, "distribution", _absent)
    multipart_form._import.cache_clear()
    with pytest.raises(NotInstalled, match=r"pip install 'headway\[multipart\]'"):
        read_form("multipart/form-data; boundary=x", FORM)


def _absent(name: str) -> NoReturn:
    raise importlib.metadata.PackageNotFoundError(name)
