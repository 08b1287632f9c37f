"""The options of a v2 request: its parameters and headers as an `Ask`."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from headway.errors import InvalidInput
from headway.hosting.explaining import Story, is_asked_for
from headway.hosting.registry import PLAIN, Ask, ServedModel
from headway.server.auth.keys import Caller
from headway.server.bodies.json_body import in_words
from headway.server.bodies.own_headers import DEADLINE, MOST_TENANT, OWN, has_own
from headway.server.service.inference import Inference
from headway.server.service.model_tasks import Task, check_does
from headway.server.service.requests import Parameters, Scalar
from headway.wire.headers import WireHeaders
from headway.wire.messages import Request

# The protocol's own, and Triton's: every other parameter is for the model.
_OURS = frozenset(
    [
        *("binary_data_output", "priority", "tenant", "timeout"),
        "triton_enable_empty_final_response",  # only streams have one; a single answer is final
    ]
)
# What these say when they say nothing. Any other value is for the model, if it takes them.
_NO_SEQUENCE = {"sequence_id": (0, ""), "sequence_start": (False,), "sequence_end": (False,)}
MAX_PARAMETERS = 1024  # of one request; each is looked at in the event loop
_HEADERS = frozenset(
    f"{OWN}{name}" for name in ("adapter", "explain", "priority", "tenant", "timeout-ms")
)
_FOR_EVER_US = 10**15  # thirty years; a clock's time plus a much longer one overflows
_NO = frozenset(["", "0", "false", "no", "off"])
_LEVELS: dict[str, Literal["high", "normal", "low"]] = {
    "high": "high",
    "normal": "normal",
    "low": "low",
}


def ask_of(parameters: Mapping[str, Scalar], request: Request) -> Ask:
    """A parameter overrides a header; of two time limits the shorter counts. On a server with keys,
    the tenant is always the key's."""
    headers, caller = request.headers, request.caller
    if not parameters and type(headers) is WireHeaders and not has_own(headers.raw):
        return PLAIN if caller is None else caller.plain
    return ask_from(parameters, headers, caller)


def ask_from(
    parameters: Mapping[str, Scalar], headers: Mapping[str, str], caller: Caller | None
) -> Ask:
    check_count(len(parameters))
    _check_headers(headers)
    priority = _priority(parameters, headers)
    deadline_ms = _deadline_ms(parameters, headers)
    tenant = _tenant(parameters, headers)
    others = {
        key: value
        for key, value in parameters.items()
        if key not in _OURS and value is not None and value not in _NO_SEQUENCE.get(key, ())
    }
    story = Story() if _explains(headers) else None
    adapter = headers.get("headway-adapter", "").strip()
    allowance = None
    if caller is not None:
        tenant, allowance = caller.key.tenant, caller.allowance
        if adapter:
            caller.check_model(adapter)
    elif not (deadline_ms or tenant or others or story or adapter) and priority == "normal":
        return PLAIN
    return Ask(
        priority,
        deadline_ms,
        tenant,
        parameters=others or None,
        story=story,
        allowance=allowance,
        adapter=adapter,
    )


def check_count(parameters: int) -> None:
    """Refuse too many parameters before any is read."""
    if parameters > MAX_PARAMETERS:
        raise InvalidInput(f"{parameters} parameters; at most {MAX_PARAMETERS} are allowed")


def _check_headers(headers: Mapping[str, str]) -> None:
    for name in headers:
        if name.startswith(OWN) and name not in _HEADERS:
            known = ", ".join(sorted(_HEADERS))
            raise InvalidInput(f"header {name!r} is unknown; there are {known}")


def _explains(headers: Mapping[str, str]) -> bool:
    value = headers.get("headway-explain")
    if value is None:
        return False
    if not is_asked_for(value) and value.strip().lower() not in _NO:
        raise InvalidInput(f"Headway-Explain must be 1 or 0, not {value!r}")
    return is_asked_for(value)


def _priority(
    parameters: Mapping[str, Scalar], headers: Mapping[str, str]
) -> Literal["high", "normal", "low"]:
    number = parameters.get("priority")
    if number is not None:
        return level_of(_count(number, "priority"))
    return _level(headers["headway-priority"]) if "headway-priority" in headers else "normal"


def _deadline_ms(parameters: Mapping[str, Scalar], headers: Mapping[str, str]) -> float | None:
    times_ms = []
    if "headway-timeout-ms" in headers:
        times_ms.append(_milliseconds(headers["headway-timeout-ms"]))
    timeout_us = _count(parameters.get("timeout") or 0, "timeout")
    if timeout_us:  # 0 is Triton's word for none
        times_ms.append(min(timeout_us, _FOR_EVER_US) / 1000)
    return min(times_ms, default=None)


def _tenant(parameters: Mapping[str, Scalar], headers: Mapping[str, str]) -> str:
    tenant = parameters.get("tenant")
    if tenant is None:
        tenant = headers.get("headway-tenant", "")
    if not isinstance(tenant, str):
        raise InvalidInput(f"parameter 'tenant' must be a text, not {tenant!r}")
    if len(tenant) > MOST_TENANT:
        raise InvalidInput(f"a tenant's name has at most {MOST_TENANT} characters")
    return tenant


class _Head(msgspec.Struct):
    parameters: Parameters | None = None


async def find_or_wake(
    inference: Inference, request: Request, name: str, version: str = "", *, head: bytes = b""
) -> ServedModel:
    """A model that loads on request, once it is there. The wait is part of the caller's time, of
    which the request's JSON (`head`) may speak, too."""
    found = inference.models.find_ready(request.caller, name, version)
    if found is not None:
        return found
    deadline_ms = ask_of(_parameters(head), request).deadline_ms
    found, left_ms = await inference.wake(request.caller, name, version, deadline_ms)
    if left_ms is not None:
        request.headers = {**request.headers, DEADLINE: str(left_ms)}
    return found


async def find_generator(inference: Inference, request: Request, name: str | None) -> ServedModel:
    """A model that generates. None: the only one that the caller may use. Raises InvalidInput."""
    if name is None:
        found = inference.models.answering(request.caller)
        names = [each.name for each in found if each.language is not None]
        names = names or inference.models.names(request.caller)  # also one that still loads
        if len(names) != 1:
            listed = ", ".join(names[:20]) or "there is none"
            raise InvalidInput(f"model: {len(names)} models could be meant ({listed}); name one")
        (name,) = names
    return await find_or_wake(inference, request, name)


async def find_for_task(
    inference: Inference, request: Request, name: str, task: Task
) -> ServedModel:
    """The same, for a route that asks for this task."""
    served = await find_or_wake(inference, request, name)
    check_does(served, task)
    return served


def _parameters(head: bytes) -> Parameters:
    try:
        return msgspec.json.decode(head or b"{}", type=_Head).parameters or {}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not as expected: {in_words(error)}") from error


def level_of(number: int) -> Literal["high", "normal", "low"]:
    """The priority of v2's number: 1 is the most urgent, 0 leaves it open."""
    return "high" if number == 1 else "normal" if number <= 2 else "low"


def _level(text: str) -> Literal["high", "normal", "low"]:
    level = _LEVELS.get(text.strip().lower())
    if level is None:
        raise InvalidInput(f"Headway-Priority must be high, normal or low, not {text!r}")
    return level


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise InvalidInput(f"Headway-Timeout-Ms must be milliseconds above 0, not {text!r}")
    return value


def _count(value: Scalar, name: str) -> int:
    """The number, which some clients send as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"parameter {name!r} must be a whole number >= 0, not {value!r}")
    return value
