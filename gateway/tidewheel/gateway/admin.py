"""The admin port: metrics and the routing obeyed. Never exposed to clients."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tidewheel.gateway.errors import InvalidRequestError
from tidewheel.gateway.requests import Request
from tidewheel.gateway.server import Responder
from tidewheel.gateway.snapshot import ModelKey, Snapshot, Table


class AdminApi:
    """``obeyed`` gives the snapshot that every process of this gateway obeys, None before there is one.

    ``render`` gives the metrics as text. It takes many milliseconds, so it works outside the event loop.
    """

    draining = False

    def __init__(self, render: Callable[[], Awaitable[bytes]], *, obeyed: Callable[[], Snapshot | None]) -> None:
        self._render = render
        self._obeyed = obeyed
        self._scrapes: set[asyncio.Task[None]] = set()

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer one request."""
        try:
            if request.method != "GET":
                allow = (("allow", "GET"),)
                raise InvalidRequestError("Only GET here.", status=405, code="method_not_allowed", headers=allow)
            if request.path == "/metrics":
                self._scrape(responder)
            elif request.path == "/healthz":
                responder.send(200, b"ok\n", headers=[("content-type", "text/plain; charset=utf-8")])
            else:
                body = orjson.dumps(self._routing(request.path))
                responder.send(200, body, headers=[("content-type", "application/json")])
        except InvalidRequestError as error:
            responder.send_error(error)

    def _scrape(self, responder: Responder) -> None:
        async def answer() -> None:
            responder.send(200, await self._render(), headers=[("content-type", CONTENT_TYPE_LATEST)])

        task = asyncio.get_running_loop().create_task(answer())
        self._scrapes.add(task)
        task.add_done_callback(self._scrapes.discard)
        responder.on_gone = task.cancel

    def _routing(self, path: str) -> dict[str, Any]:
        snapshot = self._obeyed() or Snapshot()
        match path.strip("/").split("/"):
            case ["routing"]:
                routes = [describe_table(table) for _, table in sorted(snapshot.tables.items())]
                return {"routing": routes, "staleSince": snapshot.stale_since}
            case ["routing", namespace, model]:
                table = snapshot.tables.get(ModelKey(namespace, model))
                if table is None:
                    message = f"No RoutingTable {namespace}/{model} is known here."
                    raise InvalidRequestError(message, status=404, code="no_routing_table")
                ready = ready_replicas(snapshot, table.key)
                return {**describe_table(table), "ready": ready, "staleSince": snapshot.stale_since}
        message = f"There is nothing at {path[:100]}; see /metrics, /routing and /routing/NAMESPACE/MODEL."
        raise InvalidRequestError(message, status=404, code="unknown_path")


def describe_table(table: Table) -> dict[str, Any]:
    """The generation obeyed, by which the operator and ``kubectl rollback`` confirm a change."""
    return {
        "namespace": table.namespace,
        "model": table.spec.model,
        "uid": table.uid,
        "generation": table.generation,
        "targets": [{"version": version, "weight": weight} for version, weight in table.weights],
        "observedAt": table.observed_at,
    }


def ready_replicas(snapshot: Snapshot, key: ModelKey) -> dict[str, int]:
    """Replicas that would take requests now, by version: where ``kubectl rollback`` may go at once."""
    return {
        version.version: sum(endpoint.ready and not endpoint.terminating for endpoint in endpoints)
        for version, endpoints in snapshot.endpoints.items()
        if version.model_key == key
    }
