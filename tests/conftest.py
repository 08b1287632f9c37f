import os
import tempfile

import pytest
from hypothesis import settings

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard", metavar="K/N", help="only every N-th file, from the K-th on: N runs at once"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whole files go to one shard: what they share (a server, mostly) is started once."""
    shard = config.getoption("--shard")
    if shard is None:
        return
    number, count = (int(part) for part in shard.split("/"))
    files = sorted({item.path for item in items})
    chosen = set(files[number - 1 :: count])
    config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
    items[:] = [item for item in items if item.path in chosen]
