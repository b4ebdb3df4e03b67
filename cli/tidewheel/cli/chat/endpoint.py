"""Where a gateway answers: at a URL, or behind the API server's service proxy with the caller's own rights."""

import asyncio
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tidewheel.cli.errors import CliError

GATEWAY_SERVICE: Final = "tidewheel-gateway"
_SERVICE_PORT: Final = "http"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One gateway. ``timeout_seconds`` bounds the silence of its answers, not their length."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    timeout_seconds: float = 120.0

    def get(self, path: str) -> Any:
        """The JSON answer; raises CliError with the gateway's own words."""
        with self._send("GET", path, None, {}) as response:
            return json.loads(response.read())

    @contextmanager
    def post(
        self, path: str, body: Mapping[str, Any], *, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer, to be read as it comes; leaving the block closes the connection, which ends the reply."""
        with self._send("POST", path, json.dumps(body).encode(), headers) as response:
            yield response

    @contextmanager
    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        base = urlsplit(self.url)
        with closing(self._connect(base.hostname or "", base.port, secure=base.scheme == "https")) as connection:
            try:
                sent = {"Content-Type": "application/json", **self.headers, **headers}
                connection.request(method, base.path.rstrip("/") + path, body, sent)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise CliError(self._unreachable(error)) from error
            if response.status >= 400:
                raise CliError(f"{self.url} answered {response.status}: {_words(response.read())}")
            yield response

    def _connect(self, host: str, port: int | None, *, secure: bool) -> http.client.HTTPConnection:
        if secure:
            return http.client.HTTPSConnection(host, port, timeout=self.timeout_seconds, context=self.tls)
        return http.client.HTTPConnection(host, port, timeout=self.timeout_seconds)

    def _unreachable(self, error: Exception) -> str:
        return (
            f"nothing answers at {self.url} ({error}). Start a model with `tidewheel serve smollm2`, or name another "
            "place: --url URL, or --context NAME for a cluster"
        )


def at_cluster(*, kubeconfig: Path | None, context: str | None, gateways_in: str) -> Endpoint:
    """The gateway Service of a cluster, through the API server; needs ``create`` on ``services/proxy`` there."""
    from tidewheel.clients.access import load_access

    access = load_access(kubeconfig=kubeconfig, context=context)
    headers = dict(access.headers)
    if token := asyncio.run(access.credentials.token()):
        headers["Authorization"] = f"Bearer {token}"
    path = f"/api/v1/namespaces/{gateways_in}/services/{GATEWAY_SERVICE}:{_SERVICE_PORT}/proxy"
    return Endpoint(access.server + path, headers, access.ssl_context)


def _words(body: bytes) -> str:
    """The sentence in an OpenAI error or a Kubernetes Status, else the body."""
    try:
        answer = json.loads(body)
        return str(answer["error"]["message"] if "error" in answer else answer["message"])
    except (ValueError, KeyError, TypeError):
        return body[:300].decode("utf-8", "replace").strip() or "no reason given"
