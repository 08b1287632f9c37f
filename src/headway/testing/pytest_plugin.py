"""Runs every `async def` test on virtual time. In your conftest.py:

pytest_plugins = ["headway.testing.pytest_plugin"]

Mark a test that needs real sockets or threads with `@pytest.mark.real_time`.
"""

import asyncio
import inspect
from typing import Any

import pytest

from headway.testing.virtual_time import run


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_time: run this async test on the real clock")
    if _asyncio_mode(config) == "auto":
        raise pytest.UsageError(
            "pytest-asyncio runs every async test itself where asyncio_mode is auto, so none would "
            'be on virtual time: set asyncio_mode = "strict", or leave out '
            "headway.testing.pytest_plugin"
        )


def _asyncio_mode(config: pytest.Config) -> str:
    """The mode of pytest-asyncio, by its flag or setting; empty: it is not installed."""
    if not config.pluginmanager.hasplugin("asyncio"):
        return ""
    return str(config.getoption("asyncio_mode", None) or config.getini("asyncio_mode"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    test = pyfuncitem.obj(**arguments)
    if pyfuncitem.get_closest_marker("real_time"):
        asyncio.run(test)
    else:
        run(test)
    return True
