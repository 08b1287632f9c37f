"""The plugin beside pytest-asyncio, which runs async tests itself where it may."""

import subprocess
import sys
from pathlib import Path

import pytest

# As pytest-asyncio has them; its own plugin is called `asyncio`, too.
_OTHER = """
def pytest_addoption(parser):
    parser.addoption("--asyncio-mode", dest="asyncio_mode", default=None)
    parser.addini("asyncio_mode", "", default="strict")
"""
_CONFTEST = """
pytest_plugins = ["headway.testing.pytest_plugin"]
"""
_TEST = """
import asyncio
from headway.testing import VirtualTimeLoop

async def test_it():
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
"""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "1 passed"),
        (("-o", "asyncio_mode=auto"), 'set asyncio_mode = "strict"'),
        (("--asyncio-mode=auto",), 'set asyncio_mode = "strict"'),
    ],
)
def test_a_plugin_that_takes_all_async_tests_is_named(
    tmp_path: Path, more: tuple[str, ...], says: str
) -> None:
    (tmp_path / "asyncio_like.py").write_text(_OTHER)
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_it.py").write_text(_TEST)
    entry = tmp_path / "asyncio_like-1.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: asyncio-like\nVersion: 1\n")
    (entry / "entry_points.txt").write_text("[pytest11]\nasyncio = asyncio_like\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), *more, "test_it.py"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert says in done.stdout + done.stderr
