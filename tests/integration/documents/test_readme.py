"""The README as a stranger reads it: each program saved and run, each server started and asked."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from real_server import Server, served

README = (Path(__file__).parents[3] / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def block_with(text: str, language: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    [found] = [block for block in blocks if text in block]
    return str(found)


def run(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_programs() -> None:
    assert len(PROGRAMS) > 6


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_each_program_runs_by_itself(program: str, tmp_path: Path) -> None:
    printed = run(tmp_path, program)
    if "HELLO!" in program:
        assert printed == "HELLO!\n"


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_importing_a_program_runs_nothing(program: str) -> None:
    """`headway serve file.py` imports it."""
    kinds = {type(each) for each in ast.parse(program).body}
    assert kinds.isdisjoint({ast.Expr, ast.Assert, ast.For, ast.While, ast.With})


def curl(server: Server, block: str, number: int = 0) -> str:
    """One of the block's curl lines, as it stands but for the port."""
    line = [line for line in block.splitlines() if line.startswith("curl")][number]
    command = line.replace("localhost:8000", server.address).partition("  #")[0]
    return subprocess.run(
        ["sh", "-c", f"{command} -sS"], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def ports() -> tuple[str, ...]:
    return "--port", "0", "--grpc-port", "0"


def test_the_function_on_the_first_screen_is_served(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(block_with("def shout", "python"))
    block = block_with("headway serve shout.py", "sh")
    with served(tmp_path, "shout.py", *ports()) as server:
        assert curl(server, block) == '"HELLO!"'
        told = json.loads(curl(server, block, 1))["error"]
    assert '"HELLO!"' in block  # and so it says
    assert f"400: {told}\n" in block


def test_the_streaming_model_is_served(tmp_path: Path) -> None:
    (tmp_path / "spell.py").write_text(block_with("class Spell", "python"))
    with served(tmp_path, "spell.py", *ports()) as server:
        events = curl(server, block_with("curl -N", "sh"))
    assert re.findall(r'"([abc])"', events) == ["a", "b", "c"]


def test_the_real_model_answers_curl_and_the_openai_client(tmp_path: Path) -> None:
    with served(tmp_path, "minilm", *ports()) as server:
        server.log.wait_for("is ready")
        answer = curl(server, block_with("headway serve minilm", "sh"))
        program = block_with("from openai", "py").replace("localhost:8000", server.address)
        printed = run(tmp_path, program)
    assert '"embedding":[-0.0627' in answer
    told = re.findall(r"-?\d\.\d+", program.splitlines()[-1])
    found = re.findall(r"-?\d\.\d+", printed)
    assert [each[: len(some)] for each, some in zip(found, told, strict=True)] == told
