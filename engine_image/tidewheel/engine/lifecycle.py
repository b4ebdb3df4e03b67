"""Signals, draining and the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator

import uvicorn

from tidewheel.engine.service import Service

logger = logging.getLogger(__name__)

_POLL = 0.05


class EngineServer(uvicorn.Server):
    """Signals are ours: uvicorn would cut open streams where we drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Lifecycle:
    """Starting, serving, draining, ended."""

    def __init__(self, service: Service, server: EngineServer, listener: socket.socket) -> None:
        self._service = service
        self._server = server
        self._listener = listener
        self._settings = service.settings
        self._terminate = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        engine = self._service.engine
        engine.start()
        serving = loop.create_task(self._server.serve(sockets=[self._listener]))
        warming = loop.create_task(self._service.warm_up())
        # From here on nobody is refused, though uvicorn may take its first turn a moment later.
        self._listener.listen(2048)
        host, port = self._listener.getsockname()[:2]
        logger.info(
            "serving",
            extra={
                "address": f"{host}:{port}",
                "model": self._service.model_names[0],
                "runner": engine.runner.name,
                "kernels": engine.runner.kernels,
                "max_model_len": engine.scheduler.max_model_len,
                "blocks": engine.scheduler.pool.num_blocks,
            },
        )
        if engine.runner.name == "simulated":
            logger.warning("SIMULATED: no model is loaded, every token is made up; for tests only")
        try:
            return await self._until_the_end(serving, warming)
        finally:
            warming.cancel()
            self._server.should_exit = True
            await serving
            engine.stop()

    async def _until_the_end(self, serving: asyncio.Task[None], warming: asyncio.Task[None]) -> int:
        while not self._terminate.is_set():
            if self._service.engine.death is not None:
                # Long enough for open streams to receive their error.
                await asyncio.sleep(self._settings.death_grace)
                return 1
            if serving.done() or (warming.done() and warming.exception() is not None):
                logger.error("the server ended by itself", exc_info=warming.exception() if warming.done() else None)
                return 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._terminate.wait(), _POLL)
        return await self._drain()

    async def _drain(self) -> int:
        """Endpoints vanish a moment after SIGTERM, so new work is taken a while longer; then the open replies end."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._service.start_draining()
        logger.info("draining", extra={"open": self._service.num_open})
        deadline = began + self._settings.shutdown_timeout
        # A replica that never was ready has no endpoint yet, so nobody needs time to learn of its end.
        refuse_at = min(began + self._settings.accept_after_sigterm * self._service.is_warm, deadline)
        while loop.time() < deadline and self._service.engine.death is None:
            self._service.refuses_work = self._service.refuses_work or loop.time() >= refuse_at
            if self._service.refuses_work and not self._service.num_open:
                break
            await asyncio.sleep(_POLL)
        self._service.refuses_work = True
        if cut := self._service.interrupt_all():
            logger.warning("the shutdown timeout ended open replies", extra={"open": cut})
            await asyncio.sleep(_POLL)
        return 0 if self._service.engine.death is None else 1

    def _on_signal(self) -> None:
        if self._terminate.is_set():
            logger.warning("second signal: exiting at once")
            os._exit(130)
        self._terminate.set()
