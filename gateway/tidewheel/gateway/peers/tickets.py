"""What one gateway tells another about a request, signed with a key that both have (HMAC-SHA256)."""

import base64
import binascii
import hmac
from dataclasses import asdict, dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Final

import orjson

from tidewheel.gateway.errors import GatewayError, NotServedError

HEADER: Final = b"x-tidewheel-spill"
_FORMAT: Final = 1
_SKEW_SECONDS: Final = 30.0
_LEAST_KEY_BYTES: Final = 16


class PeerKeyError(ValueError):
    """The key that gateways sign with cannot be used."""


@dataclass(frozen=True, slots=True)
class SpillTicket:
    """``version`` is a pin; ``body`` is the hash of the request's body; ``at`` is the wall clock, in seconds."""

    region: str
    at: float
    request_id: str
    user: str
    tier: str
    background: bool
    version: str
    body: str


def body_hash(body: bytes) -> str:
    """A ticket is for one body."""
    return blake2b(body, digest_size=16).hexdigest()


class Signer:
    """Writes and checks tickets."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def from_file(cls, path: Path) -> "Signer":
        """Raises OSError or PeerKeyError."""
        key = path.read_bytes().strip()
        if len(key) < _LEAST_KEY_BYTES:
            raise PeerKeyError(f"--peer-key-file {path}: the key has fewer than 16 bytes; use 32 random ones")
        return cls(key)

    def sign(self, ticket: SpillTicket) -> bytes:
        """The header's value."""
        claims = base64.urlsafe_b64encode(orjson.dumps({"format": _FORMAT, **asdict(ticket)}))
        return claims + b"." + self._seal(claims)

    def read(self, value: bytes, *, body: bytes, now: float) -> SpillTicket:
        """Raises GatewayError 403 for one that is not ours, too old, or for another body."""
        claims, _, seal = value.strip().partition(b".")
        if not hmac.compare_digest(seal, self._seal(claims)):
            raise _refused("it is not signed with the key of this gateway")
        try:
            fields = orjson.loads(base64.urlsafe_b64decode(claims))
            if fields.pop("format") != _FORMAT:
                raise _refused("it was written by a version that this one does not understand")
            ticket = SpillTicket(**fields)
        except (binascii.Error, orjson.JSONDecodeError, TypeError, KeyError):
            raise _refused("it was written by a version that this one does not understand") from None
        if abs(now - ticket.at) > _SKEW_SECONDS:
            raise _refused("it is too old, or the clocks of the gateways differ by more than 30 seconds")
        if ticket.body != body_hash(body):
            raise _refused("it is for another request")
        return ticket

    def _seal(self, claims: bytes) -> bytes:
        return hmac.digest(self._key, claims, sha256).hex().encode()


def not_taken() -> NotServedError:
    """The ladder here would answer from a smaller model: the gateway that was asked must decide and tell that."""
    message = "This region answers from a smaller model at the moment, so it takes nothing from others."
    return NotServedError(503, message, code="spill_refused", retry_after=1.0)


def _refused(why: str) -> GatewayError:
    return GatewayError(403, f"The ticket of the peer gateway is refused: {why}.", code="spill_refused")
