import gc
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
LONGEST = (TESTS / "longest.txt").read_text().split()  # files, the one that takes longest first
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


def pytest_runtestloop(session: pytest.Session) -> object:
    """Where `--take-from` is given, in the place of pytest's own loop."""
    folder = session.config.getoption("--take-from")
    if folder is None or session.testsfailed or session.config.option.collectonly:
        return None
    items = itertools.chain.from_iterable(_taken(session.items, folder))
    item = next(items, None)
    while item is not None:
        following = next(items, None)  # known before, as it decides which fixtures end
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _taken(items: Iterable[pytest.Item], folder: Path) -> Iterator[list[pytest.Item]]:
    """The tests of each file that this run gets: the first to make its mark has it. Files are taken
    whole, as their tests share a server; the longest first, so that all runs end together."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    names = {path.relative_to(TESTS).as_posix(): path for path in files}
    listed = [name for name in LONGEST if name in names]
    for name in (*listed, *sorted(names.keys() - set(listed))):
        path = names[name]
        mark = folder / name.replace("/", ".")
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            continue
        yield files[path]
