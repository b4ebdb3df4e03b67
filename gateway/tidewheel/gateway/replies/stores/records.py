"""A reply's request as another gateway needs it to carry on: format 1."""

import base64
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tidewheel.gateway.requests import Request

_FORMAT: Final = 1
_KEPT_HEADERS: Final = (b"content-type", b"traceparent", b"tracestate")


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    """Of one request. ``body`` is the client's own, byte for byte."""

    reply_id: str
    scope: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes
    stream: bool
    background: bool
    namespace: str
    model: str
    version: str
    created: int
    lane: str
    user: str
    tier: str
    response: dict[str, Any] | None = None
    """What its response object repeats, if it was asked for on ``/v1/responses``."""

    def request(self) -> Request:
        """The request again."""
        return Request("POST", self.path, "", dict(self.headers), self.body, keep_alive=False, chunked_replies=True)

    def encode(self) -> bytes:
        """JSON; unknown fields of later versions are passed over."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        fields["response"] = self.response
        fields["headers"] = {name.decode(): value.decode("latin-1") for name, value in self.headers.items()}
        fields["body"] = base64.b64encode(self.body).decode()
        return orjson.dumps({"format": _FORMAT, **fields})

    @classmethod
    def decode(cls, data: bytes) -> "ReplyRecord | None":
        """None when it was written by a version that cannot be understood."""
        fields = orjson.loads(data)
        if fields.get("format") != _FORMAT:
            return None
        headers = {name.encode(): value.encode("latin-1") for name, value in fields["headers"].items()}
        plain = {name: fields[name] for name in _PLAIN}
        body, response = base64.b64decode(fields["body"]), fields.get("response")
        return cls(headers=headers, body=body, response=response, **plain)


_PLAIN: Final = (
    "reply_id",
    "scope",
    "path",
    "stream",
    "background",
    "namespace",
    "model",
    "version",
    "created",
    "lane",
    "user",
    "tier",
)


def kept_headers(request: Request) -> dict[bytes, bytes]:
    """The headers that an attempt passes on; never credentials."""
    return {name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers}
