"""A file in parts: together they are its lines, whatever the lines are."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.offline.lines import lines_of, lines_of_part, parts_of


def whole(path: Path, after: int = 0) -> list[object]:
    with path.open("rb") as file:
        return list(lines_of(file, after=after))


@given(
    st.lists(st.sampled_from([b"\n", b" \n", b"1\n", b'"a text"\n', b'"%b"\n' % (b"x" * 99)])),
    st.sampled_from([b"", b"2", b"  "]),
    st.integers(1, 5),
    st.integers(1, 150),
)
def test_the_parts_lines_are_the_files_lines(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    end: bytes,
    most_lines: int,
    most_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("parts") / "in.jsonl"
    path.write_bytes(b"".join(lines) + end)
    for after in (0, *(each.number for each in whole(path))):  # type: ignore[attr-defined]
        parts = list(parts_of(path, after=after, most_lines=most_lines, most_bytes=most_bytes))
        found = [line for part in parts for line in lines_of_part(path, part)]
        assert found == whole(path, after)


def test_an_output_with_more_lines_than_the_input_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("1\n2\n")
    for after in (3, 9):
        with pytest.raises(ConfigError, match="output"):
            list(parts_of(path, after=after))


def test_a_last_line_that_has_grown_meanwhile_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("1\n2")
    [part] = parts_of(path)
    path.write_text("1\n23\n4\n")
    assert [each.text for each in lines_of_part(path, part)] == [b"1\n", b"23\n"]
