"""Why a file of tensors could not be read."""

import json
from pathlib import Path

import pytest

from headway.files import why_unreadable

ERROR = ValueError("as safetensors says")


def written(path: Path) -> bytes:
    head = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [3], "data_offsets": [8, 20]},
        }
    ).encode()
    whole = len(head).to_bytes(8, "little") + head + bytes(20)
    path.write_bytes(whole)
    return whole


def test_a_file_that_was_cut_off_is_told_by_its_own_head(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    whole = written(file)
    assert why_unreadable(file, ERROR) == f"{file}: {ERROR}"
    file.write_bytes(whole[:-3])
    said = f"{file}: the file ends after {len(whole) - 3} of {len(whole)} bytes"
    assert why_unreadable(file, ERROR) == said
    assert why_unreadable(tmp_path, ERROR) == said


@pytest.mark.parametrize("size", [8, 20, 60])
def test_one_that_was_cut_off_in_its_head_is_told(tmp_path: Path, size: int) -> None:
    file = tmp_path / "model.safetensors"
    whole = written(file)
    file.write_bytes(whole[:size])
    assert f"ends after {size} of {len(whole) - 20} bytes" in why_unreadable(file, ERROR)


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1", b"\x05" + bytes(7) + b"[1]xx"]
)
def test_another_file_is_told_as_its_reader_does(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert why_unreadable(file, ERROR) == f"{file}: {ERROR}"
