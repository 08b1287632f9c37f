"""The walk of ARCHITECTURE.md: a real request enters the files that it names, in its order."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx
import pytest

import headway
from compiling import IS_COMPILED, copy_interpreted
from headway.server.auth.keys import new_key
from headway.wiring import running

ROOT = Path(__file__).parents[3]
SOURCE = Path(headway.__file__).parent
followed = pytest.mark.skipif(IS_COMPILED, reason="no profile sees compiled calls: see the last")


def walk() -> list[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    (block,) = re.findall(r"^### The walk.*?^```text\n(.*?)^```", text, re.DOTALL | re.M)
    return re.findall(r"^ +([\w/]+\.py) ", block, re.M)


WALK = walk()
IN_PROCESS = WALK[WALK.index("runtime/batching/batcher.py") :]
IF_NEEDED = {"runtime/calling/inputs.py"}
# On the general way the item is queued before the shell drives: the in-process test has the rest.
IN_ORDER = WALK[: WALK.index("runtime/calling/inputs.py") + 1]


@contextmanager
def entered() -> Iterator[list[str]]:
    """The files of ours that are entered, in order, in this thread and in those that start."""
    found: list[str] = []

    def enter(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        is_made = frame.f_code.co_name in ("__init__", "__post_init__")
        if event == "call" and not is_made and SOURCE in path.parents:
            found.append(path.relative_to(SOURCE).as_posix())

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@followed
def test_a_call_in_process_enters_the_files_in_the_order_of_the_walk() -> None:
    async def one_call() -> list[str]:
        with entered() as files:
            async with headway.Batcher(_doubled) as batcher:
                files.clear()
                assert await batcher.submit(2.0) == 4.0
                return list(dict.fromkeys(files))

    met = [each for each in asyncio.run(one_call()) if each in IN_PROCESS]
    assert met == [each for each in IN_PROCESS if each not in IF_NEEDED]


@followed
def test_a_request_over_http_enters_the_files_in_the_order_of_the_walk() -> None:
    row = {"name": "input", "shape": [1], "datatype": "FP64", "data": [2.0]}
    key = new_key()
    settings = {"name": "doubled", "api_keys": {"acme": key.hash}}
    with entered() as files, running(_doubled, **settings) as url:
        files.clear()
        # An option, so that it does not take the direct path.
        headers = {"Headway-Priority": "high", "Authorization": f"Bearer {key.key}"}
        answer = httpx.post(
            f"{url}/v2/models/doubled/infer", json={"inputs": [row]}, headers=headers
        )
        assert answer.json()["outputs"][0]["data"] == [4.0]
        met = list(files)
    rest = iter(met)
    assert [each for each in IN_ORDER if each not in rest] == []
    assert [each for each in WALK if each not in met] == []


@pytest.mark.skipif(not IS_COMPILED, reason="the tests above have followed the walk")
def test_without_its_compiled_modules_a_call_follows_the_walk(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy_interpreted(tmp_path))}
    command = [sys.executable, "-m", "pytest", __file__]
    run = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "2 passed, 1 skipped" in run.stdout, run.stdout + run.stderr


def _doubled(values: list[float]) -> list[float]:
    return [2 * value for value in values]
