"""Starts and stops the gateway: where routing comes from, one process or several, and an orderly end."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import prometheus_client
import uvloop
from prometheus_client import CollectorRegistry

from tidewheel.clients.errors import AccessError
from tidewheel.clients.logs import configure_logging
from tidewheel.gateway.admin import AdminApi
from tidewheel.gateway.admission.keyfile import identify_by
from tidewheel.gateway.admission.keys import KeyFileError
from tidewheel.gateway.cors import Cors, OriginError
from tidewheel.gateway.credentials import TokenFileError, engine_authorization
from tidewheel.gateway.metrics import RoutingCollector
from tidewheel.gateway.peers.region import PeerError, regions_of
from tidewheel.gateway.peers.tickets import PeerKeyError
from tidewheel.gateway.process import raise_file_limit, settle_memory, wait_for_stop
from tidewheel.gateway.serving import HttpServer, InProcess, bind, bind_all
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import Snapshot, SnapshotError
from tidewheel.gateway.static import StaticRouting
from tidewheel.gateway.tracing import TracingError
from tidewheel.gateway.workers import WorkerPool

_log = logging.getLogger(__name__)


class Backend(Protocol):
    """How clients are served: in this process, or by workers."""

    registry: CollectorRegistry

    def publish(self, snapshot: Snapshot) -> None:
        """Serve by this from now on."""

    def obeyed(self) -> Snapshot | None:
        """What is served by, in every process."""

    async def render(self) -> bytes:
        """The metrics as text."""

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Returns when clients can connect; owns the sockets, one for each process."""

    async def drain(self, *, accept_seconds: float) -> None:
        """Returns when open requests have ended, or their time is over."""


class RoutingSource(Protocol):
    """Where routing comes from."""

    @property
    def age_seconds(self) -> float:
        """Age of what it says."""

    @property
    def regressions(self) -> int:
        """Tables obeyed although their generation went back."""

    async def run(self) -> None:
        """Publish until cancelled."""


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit code 0 after a drain, 2 when the settings cannot work, 1 on a defect."""
    settings = Settings.from_arguments(arguments)
    configure_logging(level=settings.log_level)
    raise_file_limit()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        uvloop.run(_run(settings))
    except (
        TokenFileError,
        KeyFileError,
        OriginError,
        PeerError,
        PeerKeyError,
        TracingError,
        SnapshotError,
        AccessError,
        OSError,
    ) as error:
        print(f"tidewheel.gateway: {error}", file=sys.stderr)
        return 2
    return 0


class Program:
    """The whole gateway: ``start`` it, then let it ``serve_until`` a signal comes."""

    def __init__(self, settings: Settings) -> None:
        """Raises whatever says that the settings cannot work, before anybody is served."""
        self._settings = settings
        Cors.parse(settings.cors_origins)
        regions_of(settings, wall=time.time)
        authorization = engine_authorization(settings.engine_token_file)
        self._backend: Backend
        if settings.workers > 1:
            identify_by(settings.key_file, poll_seconds=0.0, anonymous_tier=settings.anonymous_tier)  # raises
            self._backend = WorkerPool(settings)
        else:
            self._backend = InProcess(settings, authorization=authorization)
        self._source = source = _source(settings, self._backend.publish)
        collector = RoutingCollector(
            self._backend.obeyed, age_seconds=lambda: source.age_seconds, regressions=lambda: source.regressions
        )
        self._backend.registry.register(collector)
        self._admin = HttpServer(AdminApi(self._backend.render, obeyed=self._backend.obeyed), settings)

    async def start(self) -> dict[str, int]:
        """Listen; the ports, by name. Raises OSError for an address that cannot be had."""
        settings = self._settings
        admin_socket = bind(settings.host, settings.admin_port)
        ports = {"admin_port": admin_socket.getsockname()[1]}
        await self._admin.listen(admin_socket)
        data_sockets = bind_all(settings.host, settings.port, count=settings.workers)
        ports["data_port"] = data_sockets[0].getsockname()[1]
        await self._backend.start(data_sockets)
        _log.info("listening", extra=ports)
        return ports

    async def serve_until(self, stopped: Awaitable[signal.Signals]) -> None:
        """Serve, then drain; routing is followed until the last request has ended.

        Should following it fail by a defect, clients keep what they have: drain, then raise what happened.
        """
        routing, stop = asyncio.ensure_future(self._source.run()), asyncio.ensure_future(stopped)
        await asyncio.wait({routing, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            _log.error("routing is no longer followed; draining", exc_info=routing.exception())
        interrupted = stop.done() and stop.result() is signal.SIGINT
        await self._backend.drain(accept_seconds=0.0 if interrupted else self._settings.accept_after_sigterm)
        await self._admin.close()
        stop.cancel()
        routing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await routing


async def _run(settings: Settings) -> None:
    program = Program(settings)
    await program.start()
    settle_memory()
    await program.serve_until(wait_for_stop())


def _source(settings: Settings, publish: Callable[[Snapshot], None]) -> RoutingSource:
    if settings.static is not None:
        return StaticRouting(settings.static, publish, poll_seconds=settings.static_poll_seconds)
    # Without Kubernetes its client is not loaded, which halves the time to start.
    from tidewheel.gateway.discovery import Discovery
    from tidewheel.gateway.lastgood import LastGood

    last_good = LastGood(settings.state_dir) if settings.state_dir is not None else None
    return Discovery(settings, publish=publish, last_good=last_good)
