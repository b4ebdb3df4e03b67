"""How a reply leaves: one JSON document, or server-sent events written as soon as there is something to say.

Raw ASGI, because a token must cost microseconds. The status line waits for the first token, so that whatever fails
before it gets its real status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

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
        limit = WriteLimit(send, seconds=self._service.settings.write_timeout)
        try:
            async with limit:
                await limit.send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
                await self._send_events(first, deltas, scope, limit)
        except TimeoutError:
            if not limit.expired:
                raise
            logger.warning("a client read nothing for too long and was cut off", extra={"seconds": limit.seconds})
            raise ClientGoneError("The client does not read.") from None

    async def _send_events(
        self, first: list[Delta], deltas: AsyncIterator[list[Delta]], scope: Scope, limit: WriteLimit
    ) -> None:
        chunk = self._dialect.chunk
        await limit.send_part(self._dialect.opening(self._reply) + b"".join(map(chunk, first)))
        try:
            async for batch in deltas:
                await limit.send_part(b"".join(map(chunk, batch)))
            ending = self._dialect.usage_chunk(self._reply) if self._includes_usage else b""
        except ClientGoneError:
            raise
        except RequestError as error:
            ending = sse(error.body())
        except Exception:
            logger.exception("a reply failed", extra={"request_id": scope.get("request_id")})
            ending = sse(GenerationError("The engine failed while it wrote this reply.").body())
        await limit.send({"type": "http.response.body", "body": ending + DONE, "more_body": False})


class WriteLimit:
    """Sends while its block runs; raises TimeoutError where one send waits longer than ``seconds`` for the client.

    A client whose buffers are full may be waited for, but not for ever: its slot could serve somebody who reads. One
    timer looks after all writes of a reply, as one for each would cost more than most of them.
    """

    def __init__(self, send: Send, *, seconds: float) -> None:
        self.seconds = seconds
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._sending_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    async def send(self, message: Message) -> None:
        self._sending_since = self._loop.time()
        await self._send(message)
        self._sending_since = None

    async def send_part(self, data: bytes) -> None:
        """A part of the body, if there is any."""
        if data:
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    def _look(self) -> None:
        now = self._loop.time()
        due = (now if self._sending_since is None else self._sending_since) + self.seconds
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._timeout.reschedule(now)
