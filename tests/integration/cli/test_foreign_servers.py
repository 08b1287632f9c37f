"""The commands that ask a server, and one that is not what they expect: one line, no traceback."""

from pathlib import Path

import pytest

from headway.cli.main import main
from hostile_server import answering

COMMANDS = [
    ["top", "URL", "--every", "0.1", "--count", "2"],
    ["explain", "URL"],
    ["explain", "URL", "--batch", "1"],
    ["explain", "URL", "--trace", "FILE"],
    ["explain", "URL", "--what-if", "max_batch_size=4"],
    ["record", "URL", "--out", "FILE", "--seconds", "0.1"],
    ["bench", "URL", "--rate", "10", "--seconds", "0.1"],
    ["conformance", "URL"],
]
BODIES = [
    b"null",
    b"1",
    b"[[1]]",
    b"{}",
    b"[" * 100_000,
    b'{"now": 1, "next": 1, "batches": [1], "requests": [{}], "inputs": [1]}',
    b'{"next": 0, "incidents": [], "batches": [], "models": [], "requests": ["\\u001b[2J"]}',
]


def said_of(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_answer_of_another_form_is_one_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, body in enumerate(BODIES):
        with answering(said_of(body)) as url:
            given = {"URL": url, "FILE": str(tmp_path / f"{number}.json")}
            code = main([given.get(word, word) for word in command])
        shown = capsys.readouterr()
        assert code in (0, 1, 2), body[:40]
        assert code or command[0] == "top" or "FILE" in command, (body[:40], shown)
        assert "\x1b" not in shown.out + shown.err
