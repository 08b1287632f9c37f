"""`--take-from FOLDER`: several runs of pytest at once share the files of tests."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONGEST = (TESTS / "longest.txt").read_text().split()  # files, the one that takes longest first


class Sharing:
    """A plugin. A file is taken by the run that makes its mark first, and whole, as its tests share
    a server; the longest first, so that all runs end together. What others take is not imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, pytest.Module] | None = {}  # by name; nothing once tests run

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> pytest.CollectReport | None:
        """A file's tests are collected when it is taken."""
        if self._modules is None or not isinstance(collector, pytest.Module):
            return None
        self._modules[collector.path.relative_to(TESTS).as_posix()] = collector
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """In the place of pytest's own loop."""
        if session.config.option.collectonly:
            return None
        items = itertools.chain.from_iterable(self._taken(session))
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

    def _taken(self, session: pytest.Session) -> Iterator[list[pytest.Item]]:
        modules, self._modules = self._modules or {}, None
        listed = [name for name in LONGEST if name in modules]
        for name in (*listed, *sorted(modules.keys() - set(listed))):
            try:
                (self._folder / name.replace("/", ".")).touch(exist_ok=False)
            except FileExistsError:
                continue
            items = list(session.genitems(modules[name]))
            hook = session.config.hook
            hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
            session.testscollected += len(items)
            yield items
