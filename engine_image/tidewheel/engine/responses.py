"""How a reply leaves: one JSON document, or server-sent events written as soon as there is something to say.

Raw ASGI, because a token must cost microseconds. The status line waits for the first token, so that whatever fails
before it gets its real status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidewheel.engine.errors import GenerationError, RequestError
from tidewheel.engine.openai import DONE, Dialect, Folded, sse
from tidewheel.engine.replies import Delta, Reply
from tidewheel.engine.service import Service

logger = logging.getLogger(__name__)

_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGoneError(RequestError):
    """Nobody is left to answer."""


def error_response(error: RequestError) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(orjson.dumps(error.body()), error.status, headers, media_type="application/json")


class ReplyResponse(Response):
    """Owns the reply: whatever happens, the engine is told to let go of it exactly once."""

    def __init__(self, service: Service, reply: Reply, dialect: Dialect, *, stream: bool, includes_usage: bool) -> None:
        super().__init__()
        self._service = service
        self._reply = reply
        self._dialect = dialect
        self._stream = stream
        self._includes_usage = includes_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        deltas = self._reply.deltas()
        try:
            await (self._send_stream if self._stream else self._send_whole)(deltas, scope, receive, send)
        except ClientGoneError:
            logger.debug("the client went away", extra={"request_id": scope.get("request_id")})
        finally:
            watcher.cancel()
            self._service.close(self._reply)
            await deltas.aclose()  # type: ignore[attr-defined]

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._reply.interrupt(ClientGoneError("The client went away."))

    async def _send_whole(self, deltas: AsyncIterator[list[Delta]], scope: Scope, receive: Receive, send: Send) -> None:
        choices = [Folded() for _ in self._reply.choices]
        try:
            async for batch in deltas:
                for delta in batch:
                    choices[delta.choice].add(delta)
        except ClientGoneError:
            raise
        except RequestError as error:
            await error_response(error)(scope, receive, send)
            return
        body = self._dialect.whole(self._reply, choices)
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _send_stream(
        self, deltas: AsyncIterator[list[Delta]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            first = await anext(deltas)
        except ClientGoneError:
            raise
        except RequestError as error:
            await error_response(error)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
        chunk = self._dialect.chunk
        await self._write(send, self._dialect.opening(self._reply) + b"".join(map(chunk, first)))
        try:
            async for batch in deltas:
                await self._write(send, b"".join(map(chunk, batch)))
            ending = self._dialect.usage_chunk(self._reply) if self._includes_usage else b""
        except ClientGoneError:
            raise
        except RequestError as error:
            ending = sse(error.body())
        except Exception:
            logger.exception("a reply failed", extra={"request_id": scope.get("request_id")})
            ending = sse(GenerationError("The engine failed while it wrote this reply.").body())
        await send({"type": "http.response.body", "body": ending + DONE, "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        """Waits while the client's buffers are full, but not for ever: its slot could serve somebody who reads."""
        if not data:
            return
        limit = self._service.settings.write_timeout
        try:
            async with asyncio.timeout(limit):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            logger.warning("a client read nothing for too long and was cut off", extra={"seconds": limit})
            raise ClientGoneError("The client does not read.") from None
