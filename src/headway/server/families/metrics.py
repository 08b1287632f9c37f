"""`GET /metrics`, for Prometheus."""

import asyncio

from headway.observe import families
from headway.observe.exposition import OPENMETRICS, TEXT, Exposition, labels, wants_openmetrics
from headway.observe.gpu import Gpus
from headway.observe.metrics import Metrics
from headway.server.auth.access import Access
from headway.server.service.routes import Route
from headway.wire.messages import Request, Response


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
            )
        ]

    async def metrics(self, request: Request) -> Response:
        """A model at a time: a page of many models is no reason for requests to wait. A key that is
        for certain models is shown those."""
        page = Exposition() if request.caller is None else Exposition(request.caller.may_use)
        for _ in self._metrics.fill(page):
            await asyncio.sleep(0)
        page.add(families.BUILD_INFO, self._build, 1)
        if self._gpus:
            await asyncio.to_thread(self._gpus.add, page)  # the driver takes its time
        openmetrics = wants_openmetrics(request.headers.get("accept") or "")
        text = page.text(openmetrics=openmetrics)
        return Response(text.encode(), content_type=OPENMETRICS if openmetrics else TEXT)
