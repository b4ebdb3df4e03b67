"""Raw ASGI layers around every route: the request id, the bearer token."""

from __future__ import annotations

import hmac
import re
import uuid
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidewheel.engine.errors import InvalidRequestError, UnauthorizedError
from tidewheel.engine.responses import error_response

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")
_OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})


class RequestId:
    """Takes X-Request-Id or makes one, puts it into the scope, and sends it back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id")
        label = uuid.uuid4().hex if given is None else given
        if not _REQUEST_ID.fullmatch(label):
            error = InvalidRequestError(
                "X-Request-Id: use up to 128 letters, digits and ._:+/=@-", param="X-Request-Id"
            )
            await error_response(error)(scope, receive, send)
            return
        scope["request_id"] = label
        header = (b"x-request-id", label.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], header]
            await send(message)

        await self._app(scope, receive, send_with_id)


class BearerToken:
    """Everything but health, readiness and metrics needs the token, if there is one."""

    def __init__(self, app: ASGIApp, *, tokens: Callable[[], Sequence[str]] | None) -> None:
        """`tokens` says which count now; None: nobody needs one."""
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._tokens is not None and scope["path"] not in _OPEN_PATHS:
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            matches = [hmac.compare_digest(given.strip().encode(), token.encode()) for token in self._tokens()]
            if scheme.lower() != "bearer" or not any(matches):
                error = UnauthorizedError("Send the engine's token in the Authorization header, as 'Bearer <token>'.")
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
