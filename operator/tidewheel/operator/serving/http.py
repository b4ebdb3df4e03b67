"""/healthz (restart me), /readyz (I could lead), /metrics. Served by the loop that does the work: a hang is silence."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from tidewheel.operator.serving.metrics import Metrics

Check = Callable[[], str]
"""Returns what is wrong, in a sentence, or nothing."""


class StatusServer:
    """A small HTTP server; ``port`` is the one in use."""

    def __init__(self, *, host: str, port: int, metrics: Metrics, health: Check, readiness: Check) -> None:
        self._host = host
        self.port = port
        self._metrics = metrics
        self._health = health
        self._readiness = readiness
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/healthz", lambda request: self._answer(self._health()))
        app.router.add_get("/readyz", lambda request: self._answer(self._readiness()))
        app.router.add_get("/metrics", self._serve_metrics)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, trouble: str) -> web.Response:
        return web.Response(status=503 if trouble else 200, text=(trouble or "ok") + "\n")

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})
