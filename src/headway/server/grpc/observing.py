"""Calls with a line in the log, or a span: an interceptor, only there where one of them is on."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from headway.observe import logs
from headway.server.grpc.calls import SERVICE, request_id_of
from headway.server.observing import Observing

if TYPE_CHECKING:
    from headway.observe.tracing import Tracing

Method: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_OURS = frozenset(["INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "DEADLINE_EXCEEDED"])


def interceptors(observing: Observing) -> list[Any]:
    found: list[Any] = []
    if observing.logs_access:
        found.append(_Interceptor(_logged))
    tracing = observing.tracing
    if tracing is not None:
        found.append(_Interceptor(lambda method, path: _traced(method, path, tracing)))
    return found


class _Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # it has no types
    def __init__(self, around: Callable[[Method, str], Method]) -> None:
        self._around = around

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        path: str = details.method
        if handler is None or not path.startswith(f"/{SERVICE.full_name}/"):
            return handler  # health and reflection are nobody's request
        make, method = (
            (grpc.unary_unary_rpc_method_handler, handler.unary_unary)
            if handler.unary_unary is not None
            else (grpc.stream_stream_rpc_method_handler, handler.stream_stream)
        )
        return make(
            self._around(method, path),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _logged(method: Method, path: str) -> Method:
    async def logged(request: Any, context: Any) -> Any:
        line = logs.LoggedRequest(
            request_id=request_id_of(request, context), method="gRPC", path=path
        )
        line.model = getattr(request, "model_name", "")
        logs.begin(line)
        return await _ended(method, request, context, line.log)

    return logged


def _traced(method: Method, path: str, tracing: "Tracing") -> Method:
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
            tracing.end_request(
                span,
                error=status if status in _OURS else "",
                rpc__grpc__status_code=grpc.StatusCode[status].value[0],
            )

        return await _ended(method, request, context, end)

    return traced


async def _ended(method: Method, request: Any, context: Any, end: Callable[[str], None]) -> Any:
    """Have `end` told the name of the status. A method's own errors have been made one already."""
    status = "CANCELLED"
    try:
        answer = await method(request, context)
        status = "OK"
        return answer
    except grpc.aio.AbortError:
        code = context.code()  # of some versions a number, of others a member
        status = code.name if isinstance(code, grpc.StatusCode) else _CODES[code]
        raise
    finally:
        end(status)
