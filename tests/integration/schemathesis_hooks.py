"""Loaded by schemathesis in its own process; see `test_openapi.py`."""

from contextlib import suppress
from typing import Any

import schemathesis

TIMEOUT = "Headway-Timeout-Ms"


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case, kwargs: Any) -> None:
    """A time limit that is too short is rightly answered by a 504: what is a limit is long."""
    with suppress(KeyError, TypeError, ValueError):
        if case.headers and float(case.headers[TIMEOUT]) > 0:
            case.headers[TIMEOUT] = "60000"
