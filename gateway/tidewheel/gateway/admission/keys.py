"""API keys: hashed, each with its user and tier.

A key file is JSON::

    {"keys": [{"id": "alice-1", "sha256": "<64 hex digits>", "user": "alice", "tier": "paid"}, ...]}

with ``expiresAt`` (RFC 3339), ``disabled`` and ``models`` (names as clients send them) where wanted. Keys are long and
random, so that a plain SHA-256 of one cannot be turned back and no slow hash is needed.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from typing import Any, Final

import orjson

from tidewheel.gateway.errors import GatewayError

TIERS: Final = ("paid", "free", "background")
_LEAST_KEY_LENGTH: Final = 16
_MOST_KEY_LENGTH: Final = 512
_NO_DIGEST: Final = bytes(32)


class KeyFileError(Exception):
    """The key file cannot be used; the message names the entry and the way out."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. ``user`` is the unit of fairness and quota; it never leaves the gateway, ``tenant`` does."""

    user: str
    tier: str
    key_id: str = ""
    models: frozenset[str] | None = None
    tenant: str = field(init=False)

    def __post_init__(self) -> None:
        digest = blake2b(self.user.encode(), digest_size=12, person=b"tidewheel-tenant").hexdigest()
        object.__setattr__(self, "tenant", digest if self.user else "")

    def require_model(self, model: str) -> None:
        """Raises GatewayError 403 for a model that the key was not made for."""
        if self.models is not None and model not in self.models:
            named = ", ".join(sorted(self.models)) or "none"
            message = f"This key may not use the model '{model[:100]}'; it may use: {named}."
            raise GatewayError(403, message, code="model_not_allowed", param="model")


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of the file."""

    digest: bytes
    principal: Principal
    disabled: bool
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys, by digest."""

    keys: Mapping[bytes, Key]

    def principal(self, authorization: bytes | None, *, now: datetime) -> Principal:
        """The holder of the key in an Authorization header. Raises GatewayError 401 or 403."""
        digest = sha256(_presented(authorization)).digest()
        key = self.keys.get(digest)
        # The table is looked up by the hash of what was sent, which tells a stranger nothing about keys; what was found
        # is compared once more in constant time.
        if not hmac.compare_digest(key.digest if key else _NO_DIGEST, digest) or key is None:
            raise _unauthorized("The API key is not known here; check it, or ask who operates this service for one.")
        if key.disabled:
            message = "This API key is disabled; ask who operates this service for another."
            raise GatewayError(403, message, code="key_disabled")
        if key.expires_at is not None and now >= key.expires_at:
            raise _unauthorized("This API key has expired; ask who operates this service for another.", "key_expired")
        return key.principal


def parse_keys(data: bytes) -> KeyRing:
    """Read a key file. Raises KeyFileError."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise KeyFileError(f"not JSON: {error.msg}") from None
    if not isinstance(body, dict) or not isinstance(body.get("keys"), list):
        raise KeyFileError('expected {"keys": [{"id", "sha256", "user", "tier"}, ...]}')
    keys = [_parse_key(number, entry) for number, entry in enumerate(body["keys"])]
    by_digest = {key.digest: key for key in keys}
    if len(by_digest) < len(keys):
        raise KeyFileError("two entries have the same sha256; each key belongs to one user")
    return KeyRing(by_digest)


def _parse_key(number: int, entry: Any) -> Key:
    if not isinstance(entry, dict):
        raise KeyFileError(f"keys[{number}]: expected an object")
    name = f"keys[{number}] ({entry.get('id', 'no id')})"
    try:
        digest = bytes.fromhex(str(entry.get("sha256", "")))
    except ValueError:
        digest = b""
    if len(digest) != sha256().digest_size:
        raise KeyFileError(f"{name}: sha256 must be 64 hex digits; make them with: printf %s KEY | sha256sum")
    user, tier, models = entry.get("user"), entry.get("tier", "free"), entry.get("models")
    if not isinstance(user, str) or not user or len(user) > 256:
        raise KeyFileError(f"{name}: user must be a name of at most 256 characters")
    if tier not in TIERS:
        raise KeyFileError(f"{name}: tier '{tier}' is none of {', '.join(TIERS)}")
    if models is not None and not (isinstance(models, list) and all(isinstance(model, str) for model in models)):
        raise KeyFileError(f"{name}: models must be a list of names, or absent for all")
    allowed = None if models is None else frozenset(models)
    return Key(
        digest=digest,
        principal=Principal(user, tier, key_id=str(entry.get("id", ""))[:64], models=allowed),
        disabled=bool(entry.get("disabled", False)),
        expires_at=_moment(name, entry.get("expiresAt")),
    )


def _moment(name: str, text: Any) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise KeyFileError(f"{name}: expiresAt '{text}' is not a moment such as 2027-01-31T00:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _presented(authorization: bytes | None) -> bytes:
    if authorization is None:
        raise _unauthorized("Send your API key in the Authorization header, as 'Bearer <key>'.", "missing_key")
    scheme, _, key = authorization.strip().partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not _LEAST_KEY_LENGTH <= len(key) <= _MOST_KEY_LENGTH:
        raise _unauthorized("The Authorization header must be 'Bearer <key>' with the key as you were given it.")
    return key


def _unauthorized(message: str, code: str = "invalid_api_key") -> GatewayError:
    return GatewayError(401, message, code=code, headers=(("www-authenticate", 'Bearer realm="tidewheel"'),))
