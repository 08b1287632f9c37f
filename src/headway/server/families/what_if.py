"""`/admin/what-if`: what the last traffic of a model would have met under other settings.

The simulator runs in a process of its own, one at a time: neither the event loop nor its
interpreter waits for it, and a server without questions has none.
"""

import asyncio
import dataclasses
import json
import logging
import math
import sys
from urllib.parse import parse_qsl

import msgspec

from headway.errors import InvalidInput, Unavailable, nearest
from headway.hosting.hosted import Served
from headway.observe.history import ModelHistory
from headway.server.auth.keys import Caller
from headway.server.families.explain import last_batches
from headway.server.service.models import VisibleModels
from headway.server.service.routes import Route
from headway.wire.messages import Request, Response

_log = logging.getLogger(__name__)
MOST_S = 20.0
MOST_ITEMS, MOST_ROWS = 4000, 16_000
_SIMULATOR = "headway.lab.what_if"


class _Changes(msgspec.Struct, omit_defaults=True):
    max_wait_ms: float | None = None
    max_batch_size: int | None = None
    max_batch_cost: int | None = None
    max_queue: int | None = None
    workers: int | None = None
    slo_ms: float | None = None
    slo_percentile: float | None = None
    policy: str | None = None
    order: str | None = None
    compose: str | None = None


class WhatIf:
    """The route and its handler."""

    def __init__(self, models: VisibleModels) -> None:
        self._models = models
        self._turn = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [
            Route(
                *("GET", "/admin/what-if", self.simulated),
                summary="The last traffic of a model, simulated under other settings",
            )
        ]

    async def simulated(self, request: Request) -> Response:
        given = dict(parse_qsl(request.query, keep_blank_values=True))
        name, version = given.pop("model", ""), given.pop("version", "")
        served, history = self._served(request.caller, name, version)
        asked = _asked(given)
        if self._turn.locked():
            raise Unavailable("another simulation is running", retry_after_s=1.0)
        policy = served.batcher.policy
        question = {
            "policy": dataclasses.asdict(policy),
            "table": None if served.costs is None else served.costs.to_json(),
            "changes": msgspec.to_builtins(asked),
        }
        async with self._turn:
            batches = await asyncio.to_thread(last_batches, history, MOST_ITEMS, MOST_ROWS)
            body = msgspec.json.encode({"batches": batches, **question})
            answer = json.loads(await _ask_simulator(body))
        if "error" in answer:
            raise InvalidInput(answer["error"])
        settings = {
            "max_wait_ms": _ms(policy.max_wait_s),
            "max_batch_size": policy.max_batch_size,
            "slo_ms": _ms(policy.slo_s),
        }
        named = {"model": served.name, "version": served.version}
        return Response(msgspec.json.encode({**named, "settings": settings, **answer}))

    def _served(
        self, caller: Caller | None, name: str, version: str
    ) -> tuple[Served, ModelHistory]:
        if not name:
            answering = self._models.answering(caller)
            names = [each.name for each in answering if isinstance(each, Served)]
            if len(names) != 1:
                said = f"there are {', '.join(names)}" if names else "none makes batches"
                raise InvalidInput(f"model: which one? {said}")
            [name] = names
        served = self._models.get(caller, name, version)
        if not isinstance(served, Served) or served.history is None:
            raise InvalidInput(f"model: {name!r} has no batches of requests to simulate")
        return served, served.history


def _asked(given: dict[str, str]) -> _Changes:
    for name in given:
        if name not in _Changes.__struct_fields__:
            known = _Changes.__struct_fields__
            hint = nearest(name, known) or f"; known are {', '.join(known)}"
            raise InvalidInput(f"{name!r} cannot be simulated{hint}")
    try:
        asked = msgspec.convert(given, _Changes, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the query: {error}") from None
    for name in ("max_wait_ms", "slo_ms", "slo_percentile"):
        value = getattr(asked, name)
        if value is not None and not math.isfinite(value):
            raise InvalidInput(f"{name}: must be a number, not {value}")
    return asked


async def _ask_simulator(question: bytes) -> bytes:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _SIMULATOR), stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(MOST_S):
            answer, errors = await process.communicate(question)
    except TimeoutError:
        raise Unavailable(f"the simulation took longer than {MOST_S:g} s") from None
    finally:
        if process.returncode is None:  # it took too long, or the caller has left
            process.kill()
    if process.returncode:
        _log.error("a simulation failed: %s", errors.decode(errors="replace"))
        raise Unavailable("the simulation failed; the server's log says why")
    return answer


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)
