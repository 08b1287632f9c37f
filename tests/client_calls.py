"""Calls of clients that live in an environment of their own (.venv-clients). They take a while to
import, so one process makes all calls of a test file: the functions of `CALLS` in a worker file."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLIENTS_PYTHON = Path(__file__).parents[1] / ".venv-clients" / "bin" / "python"


def ended(worker: Path, url: str, *, most_s: float) -> Any:
    """How each call to this server ended, by its name."""
    done = subprocess.run(
        [str(CLIENTS_PYTHON), __file__, str(worker), url],
        capture_output=True,
        text=True,
        timeout=most_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _ended(call: Callable[[str], Any], url: str) -> Any:
    try:
        return call(url)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    calls = runpy.run_path(sys.argv[1])["CALLS"]
    sys.stdout.write(json.dumps({name: _ended(each, sys.argv[2]) for name, each in calls.items()}))
