"""The command works where the package was not installed."""

import subprocess
import sys

_UNINSTALLED = """
import importlib.metadata
known = importlib.metadata.version
def version(name):
    if name == "headway":
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)
importlib.metadata.version = version
import headway.server.run
from headway.cli.main import main
main(["--version"])
"""


def test_a_source_tree_that_was_not_installed_has_an_unknown_version() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _UNINSTALLED],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("headway unknown (Python "), done.stderr
