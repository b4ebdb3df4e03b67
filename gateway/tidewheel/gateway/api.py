"""Routes of the data port: OpenAI's paths and the two probes; nothing about the inside."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import orjson

from tidewheel.gateway.cors import Cors
from tidewheel.gateway.errors import GatewayError, InvalidRequestError, NotServedError, model_not_found
from tidewheel.gateway.exchange import Exchange
from tidewheel.gateway.peers.outlook import PATH as WAITS
from tidewheel.gateway.peers.outlook import encode
from tidewheel.gateway.peers.tickets import HEADER, SpillTicket
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.replies.routes import ReplyRoutes
from tidewheel.gateway.replies.stores.records import ReplyRecord
from tidewheel.gateway.replies.terms import scope_of
from tidewheel.gateway.requests import Request
from tidewheel.gateway.responses.asking import Asking, read_asking
from tidewheel.gateway.responses.routes import PREFIX as RESPONSES
from tidewheel.gateway.responses.routes import ResponseRoutes
from tidewheel.gateway.server import Responder
from tidewheel.gateway.snapshot import Snapshot, Table
from tidewheel.gateway.work import Surroundings, new_request_id

INFERENCE_PATHS: Final = ("/v1/chat/completions", "/v1/completions")
_JSON: Final = [("content-type", "application/json")]
_TEXT: Final = [("content-type", "text/plain; charset=utf-8")]


class DataApi:
    """The data port's app. Requests for inference run in a task each; the rest is answered at once."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        book, settings = surroundings.book, surroundings.settings
        self._replies = ReplyRoutes(book, settings, scope=self._scope, more=ResponseRoutes(book, settings))
        self._cors = Cors.parse(settings.cors_origins)
        self._open: dict[asyncio.Task[None], Exchange] = {}
        self.draining = False

    @property
    def ready(self) -> bool:
        """Routing is known and the program is not about to leave."""
        return self._around.router.snapshot is not None and not self.draining

    @property
    def open_requests(self) -> int:
        """Requests for inference that have no complete answer yet."""
        return len(self._open)

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer one request."""
        if self._cors is not None and self._share(request, responder, self._cors):
            return
        try:
            if self._replies.handles(request.path):
                self._replies.start(request, responder, [("x-request-id", new_request_id())])
                return
            if request.path in INFERENCE_PATHS:
                _require("POST", request)
                self._start(request, responder, ticket=self._ticket(request))
                return
            if request.path == WAITS and self._ticket(request) is not None:
                responder.send(200, encode(self._around.desk.outlooks()), headers=_JSON)
                return
            if request.path == RESPONSES:
                _require("POST", request)
                asking = read_asking(request)
                self._start(asking.chat, responder, asking)
                return
            status, headers, body = self._answer(request)
        except GatewayError as error:
            responder.send_error(error, [("x-request-id", new_request_id())])
        else:
            responder.send(status, body, headers=[*headers, ("x-request-id", new_request_id())])

    def _share(self, request: Request, responder: Responder, cors: Cors) -> bool:
        """Say to a browser which pages may read the answer; True when that was all it asked."""
        responder.also = cors.headers(request)
        told = cors.preflight(request, max_age=self._around.settings.cors_max_age)
        if told is not None:
            responder.send(204, b"", headers=told)
        return told is not None

    def _ticket(self, request: Request) -> SpillTicket | None:
        """What a peer says of its request; None for a client's own. Raises GatewayError 403."""
        signed, regions = request.headers.get(HEADER), self._around.regions
        return regions.read(signed, body=request.body) if signed is not None and regions is not None else None

    def _start(
        self,
        request: Request,
        responder: Responder,
        asking: Asking | None = None,
        *,
        ticket: SpillTicket | None = None,
    ) -> None:
        self._require_routing()
        exchange = Exchange(request, responder, around=self._around, asking=asking, ticket=ticket)
        task = asyncio.get_running_loop().create_task(exchange.run())
        self._open[task] = exchange
        task.add_done_callback(self._finished)
        responder.on_gone = task.cancel

    def carry_on(self, reply: Reply, record: ReplyRecord) -> None:
        """A reply of a lost gateway is ours from now on."""
        exchange = Exchange(record.request(), None, around=self._around)
        task = asyncio.get_running_loop().create_task(exchange.carry_on(reply, record))
        self._open[task] = exchange
        task.add_done_callback(self._finished)

    def _scope(self, request: Request) -> str:
        return scope_of(request, self._around.desk.identify(request).principal)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        if not task.cancelled():
            task.result()

    def cut_open_requests(self) -> None:
        """The drain's time is over: every open request ends with an explicit error."""
        for task, exchange in list(self._open.items()):
            exchange.shut_down()
            task.cancel()

    def _answer(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        path = request.path
        routes: dict[str, Callable[[], tuple[int, list[tuple[str, str]], bytes]]] = {
            "/healthz": lambda: (200, _TEXT, b"ok\n"),
            "/readyz": self._readyz,
            "/v1/models": lambda: (200, _JSON, orjson.dumps({"object": "list", "data": self._models(request)})),
        }
        if path in routes:
            _require("GET", request)
            return routes[path]()
        if path.startswith("/v1/models/"):
            _require("GET", request)
            name = path.removeprefix("/v1/models/")
            self._around.desk.identify(request).principal.require_model(name)
            return 200, _JSON, orjson.dumps(_model(name, self._model_table(name)))
        known = "/v1/models, /v1/chat/completions, /v1/completions and /v1/responses"
        message = f"There is nothing at {path[:100]}; see {known}."
        raise InvalidRequestError(message, status=404, code="unknown_path")

    def _require_routing(self) -> Snapshot:
        if self._around.router.snapshot is None:
            message = "The gateway does not know yet where models are served; try again shortly."
            raise NotServedError(503, message, code="not_ready", retry_after=1.0)
        return self._around.router.snapshot

    def _readyz(self) -> tuple[int, list[tuple[str, str]], bytes]:
        if self.ready:
            return 200, _TEXT, b"ok\n"
        return 503, _TEXT, b"draining\n" if self.draining else b"routing is not known yet\n"

    def _models(self, request: Request) -> list[dict[str, Any]]:
        models = self._around.desk.identify(request).principal.models
        self._require_routing()
        router = self._around.router
        names = [name for name in router.model_names() if models is None or name in models]
        return [_model(name, router.table(name)) for name in names]

    def _model_table(self, name: str) -> Table:
        router = self._around.router
        table = self._require_routing().tables.get(router.model_key(name))
        if table is None:
            raise model_not_found(name, router.model_names())
        return table


def _model(name: str, table: Table) -> dict[str, Any]:
    lengths = [target.max_model_len for target in table.spec.targets if target.weight > 0]
    return {"id": name, "object": "model", "created": 0, "owned_by": "tidewheel", "max_model_len": min(lengths)}


def _require(method: str, request: Request) -> None:
    if request.method != method and not (method == "GET" and request.method == "HEAD"):
        message = f"{request.path} takes {method}, not {request.method}."
        raise InvalidRequestError(message, status=405, code="method_not_allowed", headers=(("allow", method),))
