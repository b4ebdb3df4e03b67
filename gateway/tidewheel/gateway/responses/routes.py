"""The routes of responses that exist already.

GET    /v1/responses/ID          the response object; with ``stream=true`` its events after ``starting_after``
POST   /v1/responses/ID/cancel   end it now; says how it ended, however often it is asked
DELETE /v1/responses/ID          forget it
"""

from typing import Any, Final

import orjson

from tidewheel.gateway.errors import GatewayError, InvalidRequestError, NotServedError
from tidewheel.gateway.replies.book import ReplyBook, expired
from tidewheel.gateway.replies.reply import Ending, Reply
from tidewheel.gateway.replies.terms import last_seen, query_value
from tidewheel.gateway.requests import Request
from tidewheel.gateway.responses.fold import ResponseFold
from tidewheel.gateway.responses.listeners import JSON, EventListener, fold_of
from tidewheel.gateway.server import HeaderList, Responder
from tidewheel.gateway.settings import Settings

PREFIX: Final = "/v1/responses"


class ResponseRoutes:
    """Answers one request at a time; may have to fetch the reply from the store."""

    def __init__(self, book: ReplyBook, settings: Settings) -> None:
        self._book = book
        self._settings = settings

    def handles(self, path: str) -> bool:
        """Whether a path is one of these."""
        return path.startswith(PREFIX + "/")

    async def route(self, request: Request, responder: Responder, headers: HeaderList, *, scope: str) -> None:
        """Answer. Raises GatewayError."""
        match request.method, request.path.removeprefix(PREFIX).strip("/").split("/"):
            case "GET", [response_id] if query_value(request, "stream") == "true":
                await self._follow(response_id, scope, request, responder, headers)
            case "GET", [response_id]:
                _send(responder, await self._document(response_id, scope), headers)
            case "POST", [response_id, "cancel"]:
                _send(responder, await self._cancel(response_id, scope), headers)
            case "DELETE", [response_id]:
                await self._document(response_id, scope)
                await self._book.erase_one(response_id, scope)
                _send(responder, {"id": response_id, "object": "response", "deleted": True}, headers)
            case _:
                known = "responses take GET, DELETE and POST .../cancel"
                message = f"There is no {request.method} {request.path[:100]}; {known}."
                raise InvalidRequestError(message, status=404, code="unknown_path")

    async def _fetch(self, response_id: str, scope: str) -> Reply | None:
        reply = await self._book.fetch(response_id, scope)
        return reply if reply is not None and reply.response is not None and reply.log.keeps_text else None

    async def _document(self, response_id: str, scope: str) -> dict[str, Any]:
        reply = await self._fetch(response_id, scope)
        if reply is not None:
            return document_of(reply)
        final = await self._book.final(response_id, scope)
        if final is None or "response" not in final:
            raise response_not_found(response_id)
        return document_of_final(final)

    async def _follow(
        self, response_id: str, scope: str, request: Request, responder: Responder, headers: HeaderList
    ) -> None:
        reply = await self._fetch(response_id, scope)
        if reply is None:
            await self._document(response_id, scope)
            raise _expired(response_id)
        seen = last_seen(request)
        if seen is not None:
            _require_told(reply, seen)
        self._book.count_resumed(reply)
        listener = EventListener(
            responder,
            reply,
            seen=-1 if seen is None else seen,
            headers=lambda: [*headers, *self._book.headers(reply)],
            patient=False,
            max_lag=self._settings.max_lag_bytes,
        )
        reply.attach(listener)

    async def _cancel(self, response_id: str, scope: str) -> dict[str, Any]:
        reply = await self._fetch(response_id, scope)
        if reply is not None:
            await self._book.cancel(reply)
        return await self._document(response_id, scope)


def document_of(reply: Reply) -> dict[str, Any]:
    """The response object as far as the reply has been shown."""
    fold = _told(reply)
    return fold.document()


def document_of_final(final: dict[str, Any]) -> dict[str, Any]:
    """The same when only the text is left."""
    fold = ResponseFold(final["id"], created=final["created"], echo=final["response"])
    choice = {"delta": {"content": final.get("text", "")}, "finish_reason": final.get("finish_reason")}
    chunk = {"choices": [choice], "usage": final.get("usage")}
    if "text" in final:
        fold.feed(b"data: " + orjson.dumps(chunk) + b"\n\n")
    error = final.get("error")
    if "answer" in final:
        error = orjson.loads(orjson.dumps(final["answer"])).get("error")
    fold.close(error)
    return fold.document()


def response_not_found(response_id: str) -> NotServedError:
    """No such response, or somebody else's: which of the two is not told."""
    return NotServedError(404, f"There is no response '{response_id[:64]}' of yours.", code="response_not_found")


def _told(reply: Reply) -> ResponseFold:
    fold = fold_of(reply)
    fold.feed(reply.log.since(0, reply.shown))
    if reply.ending is not None and reply.ending.kind != "incomplete":
        fold.close(_error_of(reply.ending))
    return fold


def _error_of(ending: Ending) -> dict[str, Any] | None:
    if ending.answer is None or ending.kind == "completed":
        return None
    error = orjson.loads(ending.answer.body).get("error")
    return error if isinstance(error, dict) else {"message": "The response failed."}


def _require_told(reply: Reply, seen: int) -> None:
    count = _told(reply).count
    if seen >= count:
        message = f"The response has {count} events so far, numbered from 0; it cannot be resumed after event {seen}."
        raise InvalidRequestError(message, code="event_not_sent", param="starting_after")


def _expired(response_id: str) -> GatewayError:
    error = expired(response_id)
    link = f"{PREFIX}/{response_id}"
    message = f"The events of this response are no longer kept; its final text is at {link}."
    return GatewayError(410, message, code=error.code, headers=(("link", f'<{link}>; rel="alternate"'),))


def _send(responder: Responder, document: dict[str, Any], headers: HeaderList) -> None:
    responder.send(200, orjson.dumps(document), headers=[JSON, *headers])
