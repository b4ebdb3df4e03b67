"""The routes of replies: look one up, follow it, cancel it, erase it.

GET    /v1/replies/ID           how far it is, and its text
GET    /v1/replies/ID/events    its events after ``Last-Event-ID`` or ``starting_after``, then what comes
POST   /v1/replies/ID/cancel    end it now; says how it ended, however often it is asked
DELETE /v1/replies/ID           forget it
DELETE /v1/replies              forget everything of this caller
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import orjson

from tidewheel.gateway.errors import GatewayError, InvalidRequestError
from tidewheel.gateway.replies.book import ReplyBook, check_position, expired, reply_not_found
from tidewheel.gateway.replies.listener import Listener
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.replies.snapshots import snapshot
from tidewheel.gateway.replies.terms import last_seen
from tidewheel.gateway.requests import Request
from tidewheel.gateway.server import HeaderList, Responder
from tidewheel.gateway.settings import Settings

PREFIX: Final = "/v1/replies"
_JSON: Final = ("content-type", "application/json")


class MoreRoutes(Protocol):
    """Other names under which replies are found."""

    def handles(self, path: str) -> bool:
        """Whether a path is one of these."""

    async def route(self, request: Request, responder: Responder, headers: HeaderList, *, scope: str) -> None:
        """Answer. Raises GatewayError."""


class ReplyRoutes:
    """Answers in a task each, because a reply may have to be fetched from the store."""

    def __init__(
        self, book: ReplyBook, settings: Settings, *, scope: Callable[[Request], str], more: MoreRoutes
    ) -> None:
        self._book = book
        self._settings = settings
        self._scope = scope
        self._more = more
        self._tasks: set[asyncio.Task[None]] = set()

    def handles(self, path: str) -> bool:
        """Whether a path is one of these."""
        return path == PREFIX or path.startswith(PREFIX + "/") or self._more.handles(path)

    def start(self, request: Request, responder: Responder, headers: HeaderList) -> None:
        """Answer one request."""
        task = asyncio.get_running_loop().create_task(self._answer(request, responder, headers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        responder.on_gone = task.cancel

    async def _answer(self, request: Request, responder: Responder, headers: HeaderList) -> None:
        try:
            await self._route(request, responder, headers)
        except GatewayError as error:
            if not responder.started:
                responder.send_error(error, headers)

    async def _route(self, request: Request, responder: Responder, headers: HeaderList) -> None:
        scope = self._scope(request)
        if self._more.handles(request.path):
            await self._more.route(request, responder, headers, scope=scope)
            return
        match request.method, request.path.removeprefix(PREFIX).strip("/").split("/"):
            case "DELETE", [""]:
                erased = await self._book.erase(scope)
                _send(responder, {"object": "list", "erased": erased}, headers)
            case "GET", [reply_id] if reply_id:
                _send(responder, await self._look_up(reply_id, scope), headers)
            case "DELETE", [reply_id] if reply_id:
                await self._book.erase_one(reply_id, scope)
                _send(responder, {"id": reply_id, "object": "reply", "deleted": True}, headers)
            case "GET", [reply_id, "events"]:
                await self._follow(reply_id, scope, request, responder, headers)
            case "POST", [reply_id, "cancel"]:
                _send(responder, await self._cancel(reply_id, scope), headers)
            case _:
                raise _unknown(request)

    async def _look_up(self, reply_id: str, scope: str) -> dict[str, Any]:
        reply = await self._book.fetch(reply_id, scope)
        if reply is not None:
            return snapshot(reply)
        final = await self._book.final(reply_id, scope)
        if final is None:
            raise reply_not_found(reply_id)
        return final

    async def _follow(
        self, reply_id: str, scope: str, request: Request, responder: Responder, headers: HeaderList
    ) -> None:
        after = last_seen(request) or 0
        reply = await self._find(reply_id, scope)
        if not reply.stream:
            message = "This reply is not a stream; ask for it at its own address."
            raise InvalidRequestError(message, code="not_a_stream")
        if not reply.log.keeps_text:
            raise expired(reply_id)
        check_position(reply, after)
        if reply.ending is not None and reply.ending.answer is None and after >= reply.log.count:
            responder.send(204, b"", headers=headers)
            return
        self._book.count_resumed(reply)
        listener = Listener(
            responder,
            after=after,
            headers=lambda: [*headers, *self._book.headers(reply)],
            patient=False,
            max_lag=self._settings.max_lag_bytes,
        )
        reply.attach(listener)

    async def _cancel(self, reply_id: str, scope: str) -> dict[str, Any]:
        final = None
        reply = await self._book.fetch(reply_id, scope)
        if reply is None:
            final = await self._book.final(reply_id, scope)
            if final is None:
                raise reply_not_found(reply_id)
            return final
        await self._book.cancel(reply)
        return snapshot(reply)

    async def _find(self, reply_id: str, scope: str) -> Reply:
        reply = await self._book.fetch(reply_id, scope)
        if reply is not None:
            return reply
        if await self._book.final(reply_id, scope) is not None:
            raise expired(reply_id)
        raise reply_not_found(reply_id)


def _send(responder: Responder, document: dict[str, Any], headers: HeaderList) -> None:
    responder.send(200, orjson.dumps(document), headers=[_JSON, *headers])


def _unknown(request: Request) -> InvalidRequestError:
    known = "replies take GET, DELETE, GET .../events and POST .../cancel"
    message = f"There is no {request.method} {request.path[:100]}; {known}."
    return InvalidRequestError(message, status=404, code="unknown_path")
