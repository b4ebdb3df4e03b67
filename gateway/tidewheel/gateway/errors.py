"""What a client is told when a request fails.

GatewayError                the request ends with a typed answer
    InvalidRequestError          4xx: the client must change something
    NotServedError               404 or 503 with a way out: model, version or replicas are missing
    UpstreamError          502 or 504: the replica failed; counted against its version
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class GatewayError(Exception):
    """An answer in the shape that OpenAI's clients understand.

    ``message`` is a sentence that says what to change; it never names a replica's address or carries prompt text.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.headers = headers
        self.extra = extra or {}

    @property
    def type(self) -> str:
        """The error class by which the openai client picks its exception."""
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def to_json(self) -> bytes:
        """``{"error": {message, type, param, code}}``."""
        body: dict[str, Any] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if self.retry_after is not None:
            body["retry_after_ms"] = round(self.retry_after * 1000)
        body |= self.extra
        return orjson.dumps({"error": body})

    def response_headers(self) -> list[tuple[str, str]]:
        """Headers that go with the answer; ``Retry-After`` is a whole number of at least 1, as RFC 9110 wants."""
        headers = list(self.headers)
        if self.retry_after is not None:
            headers.append(("retry-after", str(max(1, -int(-self.retry_after // 1)))))
            headers.append(("retry-after-ms", str(max(1, round(self.retry_after * 1000)))))
        return headers


class InvalidRequestError(GatewayError):
    """The client must change something."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_request",
        param: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(status, message, code=code, param=param, headers=headers)


class NotServedError(GatewayError):
    """Model, version or ready replicas are missing."""


class UpstreamError(GatewayError):
    """The replica failed after everything that may be tried again was tried.

    ``reason`` is the label under which the failure is counted against the version.
    """

    def __init__(self, message: str, *, reason: str, status: int = 502, retry_after: float | None = 1.0) -> None:
        super().__init__(status, message, code=reason, retry_after=retry_after)
        self.reason = reason


def model_not_found(model: str, available: list[str]) -> NotServedError:
    """No table and no replica knows the model."""
    names = ", ".join(available[:20]) if available else "none yet"
    return NotServedError(
        404,
        f"The model '{model[:100]}' does not exist here. Available models: {names}.",
        code="model_not_found",
        param="model",
    )


def no_routing_table(model: str) -> NotServedError:
    """Replicas serve but no table says how to split; we hold and say so."""
    return NotServedError(
        503,
        f"The model '{model}' has replicas but no routing table, so no split is known; create its RoutingRule.",
        code="no_routing_table",
        retry_after=5.0,
    )


def no_ready_replica(model: str, version: str) -> NotServedError:
    """The version chosen by the split has nobody to serve it; its share is not handed to another version."""
    return NotServedError(
        503,
        f"The model '{model}' version '{version}' has no ready replica at the moment; try again shortly.",
        code="no_ready_replica",
        retry_after=2.0,
    )


def version_not_available(model: str, version: str, *, reason: str, reachable: list[str]) -> NotServedError:
    """A pin that cannot be honoured. 404 because the openai client would retry a 409."""
    names = ", ".join(reachable) if reachable else "none"
    return NotServedError(
        404,
        f"X-Version-Pin: version '{version[:40]}' of model '{model}' {reason}. Versions that can be pinned: {names}.",
        code="version_not_available",
        param="X-Version-Pin",
    )


def stream_broken(error: GatewayError) -> bytes:
    """The last event of a stream that ends abnormally: a client takes a stream that just stops as complete."""
    return b"event: error\ndata: " + error.to_json() + b"\n\n"
