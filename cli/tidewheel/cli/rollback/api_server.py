"""The few calls a rollback makes, on the standard library alone.

tidewheel.clients.kubernetes would do, but importing what it stands on takes longer than the whole rollback, and
somebody is waiting. Access, credentials, paths and errors are the same as there.
"""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from tidewheel.clients.access import Access
from tidewheel.clients.errors import ServerUnavailable, TooManyRequests, error_from_answer
from tidewheel.clients.resources import KubeObject

USER_AGENT: Final = "kubectl-rollback"
_TIMEOUT_SECONDS: Final = 10.0
_RETRY_PAUSES: Final = (0.1, 0.3)
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    body: bytes


class ApiServer:
    """One identity at one API server; every thread has a connection of its own. Methods raise ApiError.

    Use as a context manager.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    def get(self, path: str, *, params: str = "") -> KubeObject:
        """The object or list; tried again when nobody answers, because a read may be."""
        for pause in _RETRY_PAUSES:
            try:
                return self._object("GET", path + params)
            except (ServerUnavailable, TooManyRequests):
                time.sleep(pause)
        return self._object("GET", path + params)

    def create(self, path: str, body: Mapping[str, Any]) -> KubeObject:
        """POST, once."""
        return self._object("POST", path + _writing(), json.dumps(body).encode())

    def patch_json(self, path: str, operations: Sequence[Mapping[str, Any]]) -> KubeObject:
        """JSON patch, once: without an answer it may have been done, so read before trying again."""
        body = json.dumps(operations).encode()
        return self._object("PATCH", path + _writing(), body, content_type="application/json-patch+json")

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = _JSON,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> Answer:
        """The answer whatever its status; a refused token is read again once. ServerUnavailable without an answer."""
        answer = self._send(method, path, body, content_type, timeout_seconds)
        if answer.status == 401:
            self._access.credentials.invalidate()
            answer = self._send(method, path, body, content_type, timeout_seconds)
        return answer

    def _object(self, method: str, path: str, body: bytes | None = None, *, content_type: str = _JSON) -> KubeObject:
        answer = self.request(method, path, body, content_type=content_type)
        call = f"{method} {path.partition('?')[0]}"
        if answer.status >= 300:
            raise error_from_answer(answer.status, answer.body, call=call)
        try:
            parsed = json.loads(answer.body)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            message = f"the answer is no object: {answer.body[:100]!r}"
            raise ServerUnavailable(answer.status, "NotAnObject", message, call=call)
        return parsed

    def _send(self, method: str, path: str, body: bytes | None, content_type: str, timeout_seconds: float) -> Answer:
        headers = {"Accept": _JSON, "User-Agent": USER_AGENT, **({"Content-Type": content_type} if body else {})}
        if token := asyncio.run(self._access.credentials.token()):
            headers["Authorization"] = f"Bearer {token}"
        connection = self._connection()
        try:
            connection.timeout = timeout_seconds
            if connection.sock is not None:
                connection.sock.settimeout(timeout_seconds)
            connection.putrequest(method, path)
            for name, value in (*headers.items(), *self._access.headers):
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            words = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
            message = f"{self._access.server} cannot be asked: {words}"
            raise ServerUnavailable(0, "NoAnswer", message, call=f"{method} {path.partition('?')[0]}") from error

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = _connect(self._access)
            self._connections.append(connection)
        return connection


class _SecureConnection(http.client.HTTPSConnection):
    """HTTPS whose certificate may be for another name than the one that is dialled (``tls-server-name``)."""

    def __init__(self, access: Access, host: str, port: int | None) -> None:
        super().__init__(host, port, context=access.ssl_context)
        self._access = access
        self._target = urlsplit(access.server).hostname or host

    def connect(self) -> None:
        """TCP, the proxy's tunnel if there is one, then TLS."""
        http.client.HTTPConnection.connect(self)
        assert self._access.ssl_context is not None
        name = self._access.server_hostname or self._target
        self.sock = self._access.ssl_context.wrap_socket(self.sock, server_hostname=name)


def _connect(access: Access) -> http.client.HTTPConnection:
    server, proxy = urlsplit(access.server), urlsplit(access.proxy or access.server)
    if access.ssl_context is None:
        return http.client.HTTPConnection(server.hostname or "", server.port)
    connection = _SecureConnection(access, proxy.hostname or "", proxy.port)
    if access.proxy:
        connection.set_tunnel(server.hostname or "", server.port or 443)
    return connection


def _writing() -> str:
    return f"?fieldManager={USER_AGENT}&fieldValidation=Strict"
