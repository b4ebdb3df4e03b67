"""One call of the store, packed by hand.

redis-py's pipelines cost several times as much as what they carry; for what every turn of the loop writes, its
connections (their login, their TLS, a look whether they still live) are enough.
"""

from collections.abc import Sequence
from hashlib import sha1
from typing import Any

from redis.asyncio import ConnectionPool
from redis.exceptions import NoScriptError


class Script:
    """A script that the store knows by its digest, once it has seen it."""

    __slots__ = ("_by_digest", "_by_text", "_pool")

    def __init__(self, text: str, pool: ConnectionPool) -> None:
        self._pool = pool
        self._by_digest = pack(b"EVALSHA", sha1(text.encode(), usedforsecurity=False).hexdigest().encode())
        self._by_text = pack(b"EVAL", text.encode())

    async def run(self, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        """Raises RedisError or OSError."""
        rest = pack(b"%d" % len(keys), *keys, *arguments)
        begin = b"*%d\r\n" % (3 + len(keys) + len(arguments))
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.send_packed_command(begin + self._by_digest + rest, check_health=False)
            try:
                return await connection.read_response()
            except NoScriptError:
                await connection.send_packed_command(begin + self._by_text + rest, check_health=False)
                return await connection.read_response()
        finally:
            await self._pool.release(connection)


def pack(*words: bytes) -> bytes:
    """Words of a command, as the protocol wants them."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
