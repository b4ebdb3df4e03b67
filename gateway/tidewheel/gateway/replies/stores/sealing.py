"""Encryption of what lies in the store, with a key from a file; without one it lies there as it is."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

_NONCE_BYTES: Final = 12


class SealError(Exception):
    """Something in the store cannot be opened with this key."""


@dataclass(frozen=True, slots=True)
class Seals:
    """Both directions."""

    seal: Callable[[bytes], bytes]
    unseal: Callable[[bytes], bytes]


def _as_it_is(data: bytes) -> bytes:
    return data


OPEN: Final = Seals(_as_it_is, _as_it_is)


def seals_from(path: Path | None) -> Seals:
    """AES-256-GCM with a key derived from the file's content. Raises ValueError for a file that is no key."""
    if path is None:
        return OPEN
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    material = path.read_bytes().strip()
    if len(material) < 16:
        raise ValueError(f"--reply-key-file {path}: the key has fewer than 16 bytes; use 32 random ones")
    cipher = AESGCM(blake2b(material, digest_size=32, person=b"tidewheel-reply").digest())

    def seal(data: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + cipher.encrypt(nonce, data, None)

    def unseal(data: bytes) -> bytes:
        try:
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)
        except InvalidTag:
            raise SealError("a reply in the store was sealed with another key") from None

    return Seals(seal, unseal)
