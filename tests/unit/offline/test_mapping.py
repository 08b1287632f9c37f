"""Lines through a function and into a file: order, limits, and every way a file can be torn."""

import asyncio
import errno
import fcntl
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from headway.errors import Closed, ConfigError, InvalidInput
from headway.offline.lines import InputLine, head_of, lines_of
from headway.offline.mapping import Tally, map_lines
from headway.offline.output import Output, OutputNote


async def double(value: Any) -> bytes:
    if not isinstance(value, int | float):
        raise InvalidInput("a number is expected")
    return json.dumps(2 * value).encode()


def mapped(source: Path, target: Path, answer: Any = double, **options: Any) -> Tally:
    note = OutputNote(model="double", options={}, input_head=head_of(source))
    with Output(target, note, source) as output, source.open("rb") as file:
        lines = lines_of(file, after=output.last_line)
        options = {"ahead": 3, "cut": output.note_cut, **options}
        return asyncio.run(map_lines(lines, answer, output.write, **options))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('1\n2\n\n"x"\n{\n5.5\n  \n7')
    return path


@pytest.fixture
def whole(source: Path, tmp_path: Path) -> bytes:
    mapped(source, tmp_path / "whole.jsonl")
    return (tmp_path / "whole.jsonl").read_bytes()


# ---- lines


def test_lines_are_counted_with_the_blank_ones_and_found_again() -> None:
    file = io.BytesIO(b"1\n\n3\n4")
    found = list(lines_of(file))
    assert found == [InputLine(1, b"1\n", 2), InputLine(3, b"3\n", 5), InputLine(4, b"4", 6)]
    assert list(lines_of(io.BytesIO(b"1\n\n3\n4"), after=3)) == found[2:]


@pytest.mark.parametrize("size", [5, 6, 10, 11, 12, 40])
def test_a_line_that_is_too_long_is_not_held_and_its_neighbours_are_read(size: int) -> None:
    content = b"12345\n" + b"x" * size + b"\n678\n"
    found = list(lines_of(io.BytesIO(content), max_bytes=5))
    is_short = size <= 5
    assert [each.text for each in found] == [
        b"12345\n",
        b"xxxxx\n" if is_short else None,
        b"678\n",
    ]
    assert [each.end for each in found] == [6, 7 + size, 11 + size]


def test_an_output_that_is_further_than_the_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="the input has 2 lines; the output already has line 3"):
        list(lines_of(io.BytesIO(b"1\n2\n"), after=3))


# ---- order and errors


def test_each_line_is_answered_in_order_and_a_bad_one_by_an_error_record(
    source: Path, tmp_path: Path
) -> None:
    tally = mapped(source, tmp_path / "out.jsonl")
    found = records(tmp_path / "out.jsonl")
    assert [each["line"] for each in found] == [1, 2, 4, 5, 6, 8]
    assert [each.get("result") for each in found] == [2, 4, None, None, 11.0, 14]
    assert found[2]["error"] == {"code": "invalid_input", "message": "a number is expected"}
    assert found[3]["error"]["code"] == "invalid_input"
    assert found[3]["error"]["message"].startswith("the line is not JSON")
    assert (tally.lines, tally.failed, tally.end) == (6, 2, source.stat().st_size)
    assert [line for line, _ in tally.first_errors] == [4, 5]


def test_answers_that_come_in_another_order_are_written_in_the_lines_order(tmp_path: Path) -> None:
    async def backwards() -> list[bytes]:
        waiting = [asyncio.Event() for _ in range(6)]
        written: list[bytes] = []

        async def answer(value: int) -> bytes:
            if value + 1 < len(waiting) and value % 3 != 2:
                await waiting[value + 1].wait()  # the next line is answered first
            waiting[value].set()
            return b"%d" % value

        lines = lines_of(io.BytesIO(b"0\n1\n2\n3\n4\n5\n"))
        await map_lines(lines, answer, written.append, ahead=3)
        return written

    found = [json.loads(line) for line in b"".join(asyncio.run(backwards())).splitlines()]
    assert [each["result"] for each in found] == [0, 1, 2, 3, 4, 5]


def test_no_more_lines_are_read_than_are_allowed_ahead() -> None:
    read, under_way, most = 0, 0, 0

    def lines() -> Any:
        nonlocal read
        for line in lines_of(io.BytesIO(b"1\n" * 50)):
            read += 1
            yield line

    async def answer(value: int) -> bytes:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return b"0"

    tally = asyncio.run(map_lines(lines(), answer, lambda records: None, ahead=4))
    assert (read, tally.lines) == (50, 50)
    assert most <= 4


def test_what_is_not_a_lines_fault_ends_it_and_leaves_whole_lines(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f"{number}\n" for number in range(10)))

    async def dies(value: int) -> bytes:
        if value == 4:
            raise Closed("the model has stopped")
        return await double(value)

    with pytest.raises(Closed):
        mapped(source, target, dies)
    done = records(target)
    assert [each["line"] for each in done] == list(range(1, len(done) + 1))
    assert len(done) <= 4
    mapped(source, target)
    assert [each["result"] for each in records(target)] == [2 * number for number in range(10)]


def test_it_gives_up_after_as_many_errors_as_it_is_told(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert mapped(source, target, max_errors=1).gave_up
    assert [each["line"] for each in records(target)] == [1, 2, 4, 5]
    assert not mapped(source, target, max_errors=1).gave_up  # the same command goes on
    assert [each["line"] for each in records(target)] == [1, 2, 4, 5, 6, 8]


# ---- going on


def test_torn_at_any_byte_it_goes_on_without_losing_or_repeating_a_line(
    source: Path, tmp_path: Path, whole: bytes
) -> None:
    target = tmp_path / "out.jsonl"
    mapped(source, target)
    for size in range(len(whole) + 1):
        target.write_bytes(whole[:size])
        mapped(source, target)
        assert target.read_bytes() == whole, f"torn after {size} bytes"


def test_a_long_last_line_is_found(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("1\n2\n3\n")

    async def long(value: int) -> bytes:
        return json.dumps("x" * 200_000).encode()

    mapped(source, target, long)
    whole = target.read_bytes()
    for size in (len(whole) - 1, 400_100, 200_100, 200_019, 100_000):
        target.write_bytes(whole[:size])
        mapped(source, target, long)
        assert target.read_bytes() == whole


def test_done_once_more_nothing_is_left_to_do(source: Path, tmp_path: Path, whole: bytes) -> None:
    target = tmp_path / "out.jsonl"
    mapped(source, target)
    assert mapped(source, target).lines == 0
    assert target.read_bytes() == whole


def test_lines_that_were_added_to_the_input_are_answered(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    source.write_text("1\n")
    mapped(source, target)
    with source.open("a") as file:
        file.write("2\n")
    mapped(source, target)
    assert [each["result"] for each in records(target)] == [2, 4]


@pytest.mark.parametrize("added", ["4\n", "4", " \n5\n"])
def test_a_last_line_that_has_grown_since_is_not_taken_for_answered(
    tmp_path: Path, added: str
) -> None:
    """`12` without its newline was answered; now it is `124`."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("1\n12")
    mapped(source, target)
    assert mapped(source, target).lines == 0
    with source.open("a") as file:
        file.write(added)
    with pytest.raises(ConfigError, match="line 2 of the input has grown since it was answered"):
        mapped(source, target)
    assert [each["result"] for each in records(target)] == [2, 24]


def test_lines_after_one_that_got_its_newline_are_answered(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("1\n12")
    mapped(source, target)
    for added in ("\n", "3\n4", "\n5\n"):
        with source.open("a") as file:
            file.write(added)
        mapped(source, target)
    assert [each["result"] for each in records(target)] == [2, 24, 6, 8, 10]


def test_a_line_that_is_being_written_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"1\n2")
    with path.open("rb") as file:
        lines = lines_of(file)
        assert next(lines) == InputLine(1, b"1\n", 2)
        assert next(lines) == InputLine(2, b"2", 3)
        with path.open("ab") as more:
            more.write(b"3\n4\n")
        assert list(lines) == []  # 3 is no line: it ends the one that was given out


def test_another_input_model_or_file_is_not_mixed_in(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    mapped(source, target)
    other = tmp_path / "other.jsonl"
    other.write_text("9\n")
    with pytest.raises(ConfigError, match="was begun with another input"):
        mapped(other, target)
    note = OutputNote(model="triple", options={}, input_head=head_of(source))
    with pytest.raises(ConfigError, match="was begun with model 'double'"):
        Output(target, note, source).__enter__()
    OutputNote.path_of(target).unlink()
    with pytest.raises(ConfigError, match="did not begin it"):
        mapped(source, target)
    with Output(target, note, source, overwrite=True) as output:
        assert output.last_line == 0
    assert target.read_bytes() == b""


def test_two_processes_do_not_write_one_file(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    note = OutputNote(model="double", options={}, input_head=head_of(source))
    with (
        Output(target, note, source),
        pytest.raises(ConfigError, match="another process is writing it"),
    ):
        mapped(source, target)


def test_a_file_system_without_locks_is_told_as_that(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(ConfigError, match="cannot lock it \\(No locks available\\)"):
        mapped(source, tmp_path / "out.jsonl")


def test_a_last_line_that_is_not_ours_is_not_continued(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    mapped(source, target)
    target.write_text("hello\n")
    with pytest.raises(ConfigError, match="its last line is not one that headway map writes"):
        mapped(source, target)
    assert target.read_text() == "hello\n"
