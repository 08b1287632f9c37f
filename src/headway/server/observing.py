"""The last batches; metrics, a log line for each request, traces, each only if it is on.

What is off costs nothing: there is a layer around the app, and gRPC methods are wrapped, or not.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.config import ServerConfig
from headway.hosting.generation.served import ServedGenerator
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.observe import logs
from headway.observe.generation import GenerationMetrics
from headway.observe.history import History
from headway.observe.metrics import Metrics
from headway.observe.requests import RequestLog, RequestNote, current
from headway.observe.tally import ErrorTally, StageTally
from headway.observe.triton import RequestFigures
from headway.server.app import App, Handle, Layer
from headway.server.families.explain import Explain
from headway.server.families.metrics import MetricsPage
from headway.server.service.errors import status_of
from headway.server.service.routes import Route
from headway.version import VERSION
from headway.wire.messages import Answer, ErrorResponse, Request, Response, StreamResponse

if TYPE_CHECKING:
    from headway.observe.tracing import Tracing


class Observing:
    """The observers of one server. `tracing` may come from a program that has spans of its own."""

    def __init__(self, config: ServerConfig, *, tracing: "Tracing | None" = None) -> None:
        self.metrics = Metrics() if config.metrics else None
        self.page = None if self.metrics is None else MetricsPage(self.metrics, version=VERSION)
        self.history = History()
        self.logs_access = config.access_log
        self.tracing = tracing
        self._generation: GenerationMetrics | None = None
        self.http_errors = self._counted(ErrorTally("http"))
        self.grpc_errors = self._counted(ErrorTally("grpc"))
        self.stages: StageTally | None = None
        if self.metrics is not None:
            self.stages = StageTally()
            self.metrics.add_source(self.stages.add_to)

    def watch(self, model: Served, requests: RequestFigures | None = None) -> None:
        """Watch every version of every model, once it is made. Closed ones are forgotten without a
        call."""
        model.history = self.history.watch(model.batcher, version=model.version)
        if self.metrics is not None:
            self.metrics.watch(model.batcher, version=model.version, requests=requests)
        if self.logs_access:
            logs.follow(model.batcher)
        if self.tracing is not None:
            self.tracing.follow(model.batcher)

    def watch_generator(self, model: ServedGenerator) -> None:
        """The same for a language model, which has steps, not batches."""
        model.history = self.history.add(model.name, model.version)
        model.observe(model.history.observe)
        if self.metrics is None:
            return
        if self._generation is None:
            self._generation = GenerationMetrics()
            self.metrics.add_source(self._generation.add_to)
            self.metrics.load.add_source(self._generation.load)
        self._generation.watch(
            model.name, model.version, model.recorder, model.now, model.statistics
        )

    def routes(self) -> list[Route]:
        pages = [] if self.page is None else self.page.routes()
        return pages + Explain(self.history).routes()

    def follow(self, registry: Registry) -> None:
        """Follow the registry's readiness, which includes models that could not be loaded."""
        if self.metrics is not None:
            self.metrics.readiness = registry.readiness
            self.metrics.load.is_loading = lambda: registry.is_loading

    def around(self, app: App) -> App:
        """The app with its requests observed, also those that it refuses. If requests are logged
        or traced, none takes the direct path."""
        app.errors = self.http_errors
        app.wrap(_remembered(self.history.requests))
        if self.tracing is not None:
            app.wrap(_traced(app, self.tracing), may_pass=lambda headers: False)
        if self.logs_access:
            app.wrap(_logged(), may_pass=lambda headers: False)
        return app

    def _counted(self, errors: ErrorTally) -> ErrorTally:
        if self.metrics is not None:
            self.metrics.add_source(errors.add_to)
        return errors


def _remembered(requests: RequestLog) -> Layer:
    """Keeps when each request came and went."""

    def around(handle: Handle) -> Handle:
        async def remembered(request: Request) -> Answer:
            if request.path.startswith("/admin/"):
                return await handle(request)  # who asks what was slow is not among it
            note = requests.begin(request.id, f"{request.method} {request.path}")
            answer = await _ended(handle, request, lambda status, code: requests.end(note, code))
            note.is_stream = isinstance(answer, StreamResponse)
            if note.items and isinstance(answer, Response):
                model, item_id = note.items[-1]
                if timing := model.timing_of(item_id):
                    answer.headers = (*answer.headers, ("Server-Timing", timing.decode()))
            return answer

        return remembered

    return around


def _logged() -> Layer:
    def around(handle: Handle) -> Handle:
        async def logged(request: Request) -> Answer:
            line = logs.LoggedRequest(
                request_id=request.id, method=request.method, path=request.path
            )
            logs.begin(line)
            return await _ended(handle, request, lambda status, code: end(line, status, code))

        def end(line: logs.LoggedRequest, status: int, code: str) -> None:
            line.code = code
            line.log(status)

        return logged

    return around


def _traced(app: App, tracing: "Tracing") -> Layer:
    from headway.observe.tracing import traceparent

    genai = tracing.genai

    def around(handle: Handle) -> Handle:
        async def traced(request: Request) -> Answer:
            route = app.template_of(request)
            span = tracing.start_request(
                f"{request.method} {route}" if route else request.method,
                request.headers,
                {
                    "http.request.method": request.method,
                    "http.route": route,
                    "url.path": request.path,
                    "headway.request_id": request.id,
                },
            )
            # The note is current in this task only, and a stream ends in another one.
            notes: list[RequestNote | None] = []

            async def noted(request: Request) -> Answer:
                try:
                    return await handle(request)
                finally:
                    notes.append(current())

            def end(status: int, code: str) -> None:
                attributes: dict[str, Any] = {"http__response__status_code": status}
                if code:
                    attributes["error__type"] = code
                if genai is not None:
                    attributes |= genai.ended(route, notes[0], code)
                tracing.end_request(span, error=code if status >= 500 else "", **attributes)

            answer = await _ended(handle if genai is None else noted, request, end)
            answer.headers = (*answer.headers, *traceparent(span).items())
            return answer

        return traced

    return around


async def _ended(handle: Handle, request: Request, end: Callable[[int, str], None]) -> Answer:
    """Call `end(status, code)` once, after the last byte. Status 499 if the client disconnected."""
    try:
        answer = await handle(request)
    except BaseException:  # `handle` answers every error: it was cancelled
        end(logs.CANCELLED, "cancelled")
        raise
    if isinstance(answer, StreamResponse):
        status = answer.status
        answer.on_end.append(lambda error: end(*_outcome(status, error)))
    else:
        end(answer.status, answer.code if isinstance(answer, ErrorResponse) else "")
    return answer


def _outcome(status: int, error: BaseException | None) -> tuple[int, str]:
    """The status and error code that a stream is recorded with."""
    if error is None:
        return status, ""
    if not isinstance(error, Exception):
        return logs.CANCELLED, "cancelled"
    return status_of(error).http, getattr(error, "code", "internal")
