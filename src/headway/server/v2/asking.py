"""How urgent a v2 request is: its parameters and headers as an `Ask`."""

from collections.abc import Mapping
from typing import Literal

from headway.errors import InvalidInput
from headway.server.serving import Ask
from headway.server.v2.codec import Parameters, Scalar

_PLAIN = Ask()
_LEVELS: dict[str, Literal["high", "normal", "low"]] = {
    "high": "high",
    "normal": "normal",
    "low": "low",
}


def ask_of(parameters: Parameters, headers: Mapping[str, str]) -> Ask:
    """A parameter goes before a header; of two timeouts the shorter counts."""
    priority: Literal["high", "normal", "low"] = "normal"
    if "headway-priority" in headers:
        priority = _level(headers["headway-priority"])
    times_ms = []
    if "headway-timeout-ms" in headers:
        times_ms.append(_milliseconds(headers["headway-timeout-ms"]))
    if parameters:
        if parameters.get("priority") is not None:
            priority = level_of(_count(parameters["priority"], "priority"))
        timeout_us = _count(parameters.get("timeout") or 0, "timeout")
        if timeout_us:  # 0 is Triton's word for none
            times_ms.append(timeout_us / 1000)
    tenant = headers.get("headway-tenant", "")
    if not (times_ms or tenant) and priority == "normal":
        return _PLAIN
    return Ask(priority, min(times_ms, default=None), tenant)


def level_of(number: int) -> Literal["high", "normal", "low"]:
    """v2's number: 1 is the most urgent, 0 says nothing."""
    return "high" if number == 1 else "normal" if number <= 2 else "low"


def _level(text: str) -> Literal["high", "normal", "low"]:
    level = _LEVELS.get(text.strip().lower())
    if level is None:
        raise InvalidInput(f"Headway-Priority is {text!r}, not high, normal or low")
    return level


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise InvalidInput(f"Headway-Timeout-Ms is {text!r}, not a number of milliseconds over 0")
    return value


def _count(value: Scalar, name: str) -> int:
    """Some clients send the number as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"parameter {name!r} is a whole number from 0, not {value!r}")
    return value
