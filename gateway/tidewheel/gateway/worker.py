"""A worker process: serves clients on a socket it was given, by snapshots that its parent sends.

``python -m tidewheel.gateway.worker --listen-fd N --feed-fd M SETTINGS``; started by ``workers`` only.
"""

import argparse
import asyncio
import logging
import signal
import socket
import sys
from datetime import UTC, datetime
from typing import Any

import prometheus_client
import uvloop

from tidewheel.clients.logs import configure_logging
from tidewheel.gateway.admission.keys import KeyFileError
from tidewheel.gateway.aggregation import report
from tidewheel.gateway.credentials import TokenFileError, engine_authorization
from tidewheel.gateway.feed import Line
from tidewheel.gateway.process import raise_file_limit, settle_memory, wait_for_stop
from tidewheel.gateway.serving import DataPlane
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import Snapshot, parse_snapshot

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM, or until the parent is gone."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--feed-fd", type=int, required=True)
    descriptors, rest = parser.parse_known_args(arguments)
    settings = Settings.from_arguments(rest)
    configure_logging(level=settings.log_level)
    raise_file_limit()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        uvloop.run(_serve(settings, listen_fd=descriptors.listen_fd, feed_fd=descriptors.feed_fd))
    except (TokenFileError, KeyFileError) as error:
        print(f"tidewheel.gateway.worker: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(settings: Settings, *, listen_fd: int, feed_fd: int) -> None:
    plane = DataPlane(settings, authorization=engine_authorization(settings.engine_token_file))
    line = await Line.over(socket.socket(fileno=feed_fd))
    first = await line.receive()  # so that nobody is refused because this process is new
    _obey(plane, first or {}, line=line)
    await plane.begin()
    await plane.server.listen(socket.socket(fileno=listen_fd))
    line.send({"listening": True})
    settle_memory()
    stopped = asyncio.ensure_future(wait_for_stop())
    fed = asyncio.ensure_future(_follow(plane, line))
    await asyncio.wait({stopped, fed}, return_when=asyncio.FIRST_COMPLETED)
    orderly = stopped.done() and stopped.result() is signal.SIGTERM
    if not stopped.done():
        _log.warning("the parent is gone; leaving")
    await plane.drain(accept_seconds=settings.accept_after_sigterm if orderly else 0.0)
    line.send({"metrics": report(plane.metrics.registry)})
    fed.cancel()
    line.close()


async def _follow(plane: DataPlane, line: Line) -> None:
    """Obey what the parent sends, and tell it so."""
    while (message := await line.receive()) is not None:
        if "ping" in message:
            line.send({"pong": True})
        elif "scrape" in message:
            line.send({"metrics": await asyncio.to_thread(report, plane.metrics.registry)})
        else:
            _obey(plane, message, line=line)


def _obey(plane: DataPlane, message: dict[str, Any], *, line: Line) -> None:
    if message.get("snapshot") is None:
        return
    observed_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    known = plane.router.snapshot or Snapshot()
    plane.apply(parse_snapshot(message["snapshot"], observed_at=observed_at, known=known))
    line.send({"obeyed": message["number"]})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
