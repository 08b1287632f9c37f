"""Uploads where nothing is installed to read them."""

import sys

import pytest

from headway.errors import InvalidInput
from headway.server.api.openai.forms import read_form


def test_without_multipart_the_answer_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "multipart", None)
    with pytest.raises(InvalidInput, match=r"cannot read uploads .*headway\[multipart\]"):
        read_form("multipart/form-data; boundary=x", b"--x--\r\n")
