"""Calls with a line in the log, or a span: methods are wrapped only where one of them is on."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.observe import logs
from headway.observe.requests import current
from headway.server.grpc.calls import Run, Wrapper, request_id_of
from headway.wire.http2.status import Aborted, Status

if TYPE_CHECKING:
    from headway.observe.tracing import Tracing
    from headway.server.observing import Observing

_OURS = frozenset(["INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "DEADLINE_EXCEEDED"])


def wrappers(observing: "Observing") -> list[Wrapper]:
    """The wrappers for the service's methods; health and reflection do not count as requests."""
    found: list[Wrapper] = []
    if observing.logs_access:
        found.append(_logged)
    tracing = observing.tracing
    if tracing is not None:
        found.append(lambda method, path: _traced(method, path, tracing))
    return found


def _logged(method: Run, path: str) -> Run:
    async def logged(request: Any, context: Any) -> Any:
        line = logs.LoggedRequest(
            request_id=request_id_of(request, context), method="gRPC", path=path
        )
        line.model = getattr(request, "model_name", "")
        logs.begin(line)
        return await _ended(method, request, context, line.log)

    return logged


def _traced(method: Run, path: str, tracing: "Tracing") -> Run:
    from headway.observe.tracing import traceparent

    async def traced(request: Any, context: Any) -> Any:
        service, _, name = path[1:].partition("/")
        span = tracing.start_request(
            path[1:],
            dict(context.invocation_metadata() or ()),
            {
                "rpc.system": "grpc",
                "rpc.service": service,
                "rpc.method": name,
                "headway.request_id": request_id_of(request, context),
            },
        )
        await context.send_initial_metadata(tuple(traceparent(span).items()))

        def end(status: str) -> None:
            attributes: dict[str, Any] = {"rpc__grpc__status_code": int(Status[status])}
            if tracing.genai is not None and name == "ModelInfer":  # a stream has many requests
                code = "" if status == "OK" else status.lower()
                attributes |= tracing.genai.ended("", current(), code)
            tracing.end_request(span, error=status if status in _OURS else "", **attributes)

        return await _ended(method, request, context, end)

    return traced


async def _ended(method: Run, request: Any, context: Any, end: Callable[[str], None]) -> Any:
    """Call `end` with the name of the status, once the call is over."""
    status = "CANCELLED"
    try:
        answer = await method(request, context)
        status = "OK"
        return answer
    except Aborted:
        status = context.code().name
        raise
    finally:
        end(status)
