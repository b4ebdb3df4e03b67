"""What a request asks of its reply: that it outlives the connection, that a second copy attaches to it."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from tidewheel.gateway.admission.keys import Principal
from tidewheel.gateway.errors import InvalidRequestError
from tidewheel.gateway.requests import Request

_LONGEST_KEY: Final = 255
_TRUE: Final = frozenset({"true", "1"})


@dataclass(frozen=True, slots=True)
class Terms:
    """``key`` names the message, so that it is answered once. ``after`` is the last event that the client has seen."""

    key: str | None
    resumable: bool
    body_hash: str
    after: int | None
    sdk_retry: int | None  # how often an SDK has sent this request before; None when no SDK says so

    @property
    def outlives_connections(self) -> bool:
        """Whether the reply goes on when the client is gone."""
        return self.resumable or self.key is not None


def terms_of(request: Request, fields: dict[str, Any], *, kept: bool = False) -> Terms:
    """``kept`` replies are resumable without being asked to be. Raises InvalidRequestError."""
    asked = fields.get("resumable")
    if asked is not None and not isinstance(asked, bool):
        raise InvalidRequestError("'resumable' must be true or false.", code="invalid_type", param="resumable")
    named = (request.header(b"x-resumable") or "").lower()
    retry = request.header(b"x-stainless-retry-count")
    return Terms(
        key=_key(request, fields),
        resumable=kept or bool(asked) or named in _TRUE,
        body_hash=blake2b(request.path.encode() + b"\n" + request.body, digest_size=16).hexdigest(),
        after=last_seen(request),
        sdk_retry=int(retry) if retry is not None and retry.isdigit() else None,
    )


def _key(request: Request, fields: dict[str, Any]) -> str | None:
    header, field = request.header(b"idempotency-key"), fields.get("request_id")
    if field is not None and not isinstance(field, str):
        raise InvalidRequestError("'request_id' must be a string.", code="invalid_type", param="request_id")
    if header and field and header != field:
        message = "Idempotency-Key and 'request_id' name different messages; send one of them."
        raise InvalidRequestError(message, code="conflicting_keys", param="request_id")
    key = header or field or None
    if key is not None and len(key) > _LONGEST_KEY:
        message = f"The idempotency key is longer than {_LONGEST_KEY} characters."
        raise InvalidRequestError(message, code="key_too_long", param="Idempotency-Key")
    return key


def last_seen(request: Request) -> int | None:
    """The larger of ``Last-Event-ID`` and ``starting_after``, if any. Raises InvalidRequestError."""
    seen = [
        _number(value, name)
        for name, value in (
            ("Last-Event-ID", request.header(b"last-event-id")),
            ("starting_after", query_value(request, "starting_after")),
        )
        if value is not None and value != ""
    ]
    return max(seen, default=None)


def query_value(request: Request, name: str) -> str | None:
    """A parameter of the query."""
    for part in request.query.split("&"):
        known, _, value = part.partition("=")
        if known == name:
            return value
    return None


def _number(value: str, name: str) -> int:
    if not value.isdecimal() or not value.isascii() or len(value) > 18:
        message = f"{name} must be the number of an event, as in its 'id' field."
        raise InvalidRequestError(message, code="invalid_event_number", param=name)
    return int(value)


def scope_of(request: Request, principal: Principal) -> str:
    """Whose reply it is: nobody else may read or cancel it. Stands for the user, or else for the credentials, without
    telling them."""
    credentials = request.headers.get(b"authorization", b"")
    return principal.tenant or (blake2b(credentials, digest_size=12).hexdigest() if credentials else "anonymous")
