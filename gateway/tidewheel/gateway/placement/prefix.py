"""What a prompt begins with, as a chain of hashes: equal beginnings have equal hashes, however the rest goes on.

Each position covers everything before it, in blocks of 256 bytes up to 64 of them; the last, partial block counts too.
The tenant is part of the first hash: otherwise the time to the first token would tell one tenant what another sent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

_BLOCK_BYTES: Final = 256
_MOST_BLOCKS: Final = 64
_HOME_BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class Prefix:
    """``positions`` from short to long. ``home`` decides the order of replicas, the same in every gateway."""

    positions: tuple[int, ...]
    home: int


def prefix_of(fields: Mapping[str, Any], *, scope: str, conversation: str | None) -> Prefix | None:
    """Of a request's prompt; None where it has none that can be read.

    ``scope`` names model, version, adapter and tenant. A named conversation has its home by its name, so that all its
    turns agree on it in every gateway; any other prompt by its first 2 KiB.
    """
    text = b"".join(_first_bytes(fields, _BLOCK_BYTES * _MOST_BLOCKS))
    if not text:
        return None
    digest, positions = blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=8).digest(), list[int]()
    named = blake2b(digest + conversation.encode("utf-8", "surrogatepass"), digest_size=8) if conversation else None
    for start in range(0, min(len(text), _BLOCK_BYTES * _MOST_BLOCKS), _BLOCK_BYTES):
        digest = blake2b(digest + text[start : start + _BLOCK_BYTES], digest_size=8).digest()
        positions.append(int.from_bytes(digest, "big"))
    home = int.from_bytes(named.digest(), "big") if named else positions[min(len(positions), _HOME_BLOCKS) - 1]
    return Prefix(tuple(positions), home)


def _first_bytes(fields: Mapping[str, Any], limit: int) -> Iterator[bytes]:
    """The prompt from its beginning until there is enough."""
    seen = 0
    for text in _texts(fields):
        if seen >= limit:
            return
        piece = text[: limit - seen].encode("utf-8", "surrogatepass")
        seen += len(piece)
        yield piece


def _texts(fields: Mapping[str, Any]) -> Iterator[str]:
    prompt, messages = fields.get("prompt", fields.get("input")), fields.get("messages")
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        yield str(prompt[: _BLOCK_BYTES * _MOST_BLOCKS])
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        yield f"\x00{message.get('role')}\x00"
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from (str(part.get("text", part.get("type"))) for part in content if isinstance(part, dict))
