"""Every error of this package.

ClientsError
├── AccessError            no usable kubeconfig or service account
├── PrometheusError        no usable answer from Prometheus (in `prometheus.py`)
└── ApiError               the API server refused, or could not be asked
    ├── Unauthorized       401, after the credentials were read again
    ├── Forbidden          403
    ├── NotFound           404
    ├── AlreadyExists      409 on a create
    ├── Conflict           409: another writer was first, or another manager owns the field
    ├── Gone               410: the version asked for is compacted; list again
    ├── Invalid            400, 413, 415, 422: the object itself is wrong, no retry can help
    ├── TooManyRequests    429, after the retries
    └── ServerUnavailable  5xx, no connection, no answer in time
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson


class ClientsError(Exception):
    """Root of the errors of tidewheel.clients."""


class AccessError(ClientsError):
    """There is no way to reach or to log in to an API server; the message says which file or variable to mend."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One part of a refusal: the field it speaks of, if any, and the API server's words."""

    reason: str
    field: str
    message: str


class ApiError(ClientsError):
    """The API server's refusal in its own words, behind the call that it refused."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        call: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{call}: {message}" if call else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after


class Unauthorized(ApiError):  # noqa: N818 - the API's own word
    """401: the credentials are not, or no longer, accepted."""


class Forbidden(ApiError):  # noqa: N818
    """403: the identity may not do this, or the namespace is being deleted (see ``causes``)."""


class NotFound(ApiError):  # noqa: N818
    """404: the object, or the whole kind, does not exist."""


class AlreadyExists(ApiError):  # noqa: N818
    """409: an object of this name exists."""


class Conflict(ApiError):  # noqa: N818
    """409: the precondition does not hold, or another field manager owns a field (``causes`` name it)."""


class Gone(ApiError):  # noqa: N818
    """410: the resource version asked for is too old."""


class Invalid(ApiError):  # noqa: N818
    """The API server found the object wrong; ``causes`` name the fields."""


class TooManyRequests(ApiError):  # noqa: N818
    """429: the server, or a PodDisruptionBudget, asks to come back later."""


class ServerUnavailable(ApiError):  # noqa: N818
    """No answer, or a 5xx. A write may or may not have happened: read before acting again."""


_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: TooManyRequests,
}

# Server-side apply answers 500 where a field is unknown; no retry of such an object can help.
_UNTYPED: Final = "failed to create typed patch object"


def error_from_answer(status: int, body: bytes, *, call: str, retry_after: float | None = None) -> ApiError:
    """The error for an HTTP answer; a body that is no Status (a proxy's page) is quoted shortened."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    if isinstance(parsed, dict) and parsed.get("kind") == "Status":
        return error_from_status({"code": status, **parsed}, call=call, retry_after=retry_after)
    text = body[:300].decode("utf-8", "replace").strip() or f"HTTP {status} without a body"
    return _error_class(status, "")(status, "", text, call=call, retry_after=retry_after)


def error_from_status(status: Mapping[str, Any], *, call: str, retry_after: float | None = None) -> ApiError:
    """The error for a metav1.Status, from an answer or from inside a watch."""
    code = int(status.get("code") or 500)
    reason = str(status.get("reason") or "")
    details = status.get("details") or {}
    causes = tuple(
        Cause(str(cause.get("reason", "")), str(cause.get("field", "")), str(cause.get("message", "")))
        for cause in details.get("causes") or ()
    )
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    message = str(status.get("message") or f"HTTP {code}")
    if code >= 500 and _UNTYPED in message:
        code, reason = 422, "Invalid"
    return _error_class(code, reason)(code, reason, message, call=call, causes=causes, retry_after=retry_after)


def _error_class(status: int, reason: str) -> type[ApiError]:
    if reason == "AlreadyExists":
        return AlreadyExists
    if reason in {"Expired", "Gone"}:
        return Gone
    if status >= 500:
        return ServerUnavailable
    return _BY_STATUS.get(status, ApiError)
