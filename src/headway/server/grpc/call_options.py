"""Options of a call: v2's parameters, HTTP's headers as metadata, and the call's own deadline."""

import dataclasses
from typing import Any

from headway.errors import DeadlineExceeded
from headway.hosting.registry import PLAIN, Ask
from headway.server.auth.keys import Caller
from headway.server.service.options import ask_from
from headway.server.service.requests import Parameters

_PREFIX = "headway-"
_NO_HEADERS: dict[str, str] = {}


def ask_of_call(parameters: Parameters, context: Any, caller: Caller | None) -> Ask:
    """The options of one call. Where it has two time limits, the shorter counts."""
    headers = _NO_HEADERS
    for key, value in context.invocation_metadata() or ():
        if key.startswith(_PREFIX):
            headers = {**headers, key: value}
    if parameters or headers:
        ask = ask_from(parameters, headers, caller)
    else:
        ask = PLAIN if caller is None else caller.plain
    left_s = context.time_remaining()
    if left_s is None:
        return ask
    if left_s <= 0:
        raise DeadlineExceeded("the call's deadline has passed")
    left_ms = left_s * 1000
    if ask.deadline_ms is not None and ask.deadline_ms <= left_ms:
        return ask
    return dataclasses.replace(ask, deadline_ms=left_ms)
