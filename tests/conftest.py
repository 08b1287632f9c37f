import gc
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from sharing import Sharing

pytest_plugins = ["headway.testing.pytest_plugin"]

# CI looks at the same examples every time; a developer's run looks further, and `make test-all`
# twenty times as long.
is_ci = bool(os.environ.get("CI"))
settings.register_profile("default", deadline=None, print_blob=True, derandomize=is_ci)
settings.register_profile("long", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# What servers keep for their next start must not come from, or go to, the developer's own.
_cache = tempfile.TemporaryDirectory(prefix="headway-tests-")
os.environ["XDG_CACHE_HOME"] = _cache.name


@pytest.fixture(scope="module", autouse=True)
def _collected() -> None:
    """Garbage collections look at what this file makes, and not at the thousands of tests that are
    collected: some tests have hundreds of full collections."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--take-from",
        type=Path,
        metavar="FOLDER",
        help="run only files that no other run with this folder has taken: several runs at once "
        "share the tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (folder := config.getoption("--take-from")) is not None:
        config.pluginmanager.register(Sharing(folder))
