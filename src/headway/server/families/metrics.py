"""`GET /metrics`, for Prometheus."""

import asyncio
from typing import Any

from headway.observe import families
from headway.observe.exposition import OPENMETRICS, TEXT, Exposition, labels, wants_openmetrics
from headway.observe.gpu import Gpus
from headway.observe.load import ORCA, ORCA_ASKED
from headway.observe.metrics import Metrics
from headway.server.auth.access import Access
from headway.server.auth.keys import check_whole_server
from headway.server.service.routes import Handler, Route
from headway.wire.messages import Answer, Request, Response


class MetricsPage:
    """The routes and their handlers."""

    def __init__(self, metrics: Metrics, *, version: str) -> None:
        self._metrics = metrics
        self._gpus = Gpus()
        self._build = labels(("version",), (version,))

    def routes(self) -> list[Route]:
        return [
            Route(
                *("GET", "/metrics", self.metrics, Access.METRICS),
                may_compress=True,
                summary="Metrics for Prometheus",
            ),
            Route(
                *("GET", "/metrics/load", self.load, Access.METRICS),
                summary="The load of the whole process, for scalers and pickers",
            ),
        ]

    async def metrics(self, request: Request) -> Response:
        """A model at a time: a page of many models is no reason for requests to wait. A key that is
        for certain models is shown those."""
        page = Exposition()
        if request.caller is not None:
            is_whole = not request.caller.key.models
            page = Exposition(request.caller.may_use, shows_all=is_whole)
        for _ in self._metrics.fill(page):
            await asyncio.sleep(0)
        page.add(families.BUILD_INFO, self._build, 1)
        if self._gpus:
            await asyncio.to_thread(self._gpus.add, page)  # the driver takes its time
        return _written(page, request)

    def reporting(self, handler: Handler) -> Handler:
        """The handler, with the load in a header of its answers where the caller asks for it: a
        balancer that has it needs to poll nobody."""

        async def reported(request: Request, *given: Any, **params: str) -> Answer:
            answer = await handler(request, *given, **params)
            form = request.headers.get(ORCA_ASKED)
            if form is not None:
                pace = self._metrics.pace_of(params.get("model", ""))
                text = self._metrics.load.orca(form, pace)
                if text is not None:
                    answer.headers = (*answer.headers, (ORCA, text))
            return answer

        return reported

    async def load(self, request: Request) -> Response:
        """A few lines, however many models there are: pickers ask twenty times a second."""
        check_whole_server(request.caller)
        page = Exposition()
        self._metrics.load.add_to(page)
        return _written(page, request)


def _written(page: Exposition, request: Request) -> Response:
    openmetrics = wants_openmetrics(request.headers.get("accept") or "")
    text = page.text(openmetrics=openmetrics)
    return Response(text.encode(), content_type=OPENMETRICS if openmetrics else TEXT)
