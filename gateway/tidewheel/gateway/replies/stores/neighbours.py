"""The other gateways: where each can be asked whether it lives, and what it said last."""

import asyncio
import contextlib
from collections.abc import Mapping

from tidewheel.gateway.replies.stores.lifeline import Sign, ask
from tidewheel.gateway.replies.stores.redis_store import RedisStore, StoreAwayError, key_of

_FORGOTTEN_AFTER = 60.0


class Neighbours:
    """Asks each at most a few times in a lease, for however many replies of it."""

    def __init__(self, store: RedisStore, *, lease_seconds: float) -> None:
        self._store = store
        self._patience = lease_seconds / 2
        self._addresses: dict[str, str] = {}  # also while their signs of life are missing
        self._asked: dict[str, tuple[float, asyncio.Task[Sign]]] = {}
        self._doubting: set[asyncio.Task[None]] = set()

    def learn(self, signs: Mapping[str, bytes | None]) -> None:
        """What signs of life in the store say: the address, since gateways have one."""
        for name, sign in signs.items():
            if sign is not None and b"|" in sign:
                self._addresses[name] = sign.decode()

    def forget(self, name: str) -> None:
        """It is dead, and nothing of it is left."""
        self._addresses.pop(name, None)

    async def ask(self, name: str) -> Sign:
        """Whether it lives; silent too where its address is not known. Raises StoreAwayError."""
        now = asyncio.get_running_loop().time()
        at, asking = self._asked.get(name, (-1e9, None))
        if asking is None or (asking.done() and now - at > self._patience / 2):
            self._asked = {each: kept for each, kept in self._asked.items() if now - kept[0] < _FORGOTTEN_AFTER}
            asking = asyncio.get_running_loop().create_task(self._ask(name))
            self._asked[name] = now, asking
        return await asyncio.shield(asking)

    def doubt(self, name: str) -> None:
        """A client came here from it: if it is dead, its sign of life need not expire first."""
        task = asyncio.get_running_loop().create_task(self._bury_if_gone(name))
        self._doubting.add(task)
        task.add_done_callback(self._doubting.discard)

    async def _bury_if_gone(self, name: str) -> None:
        with contextlib.suppress(StoreAwayError):
            if await self.ask(name) is Sign.GONE:
                await self._store.commands(("DEL", key_of("g", name)))

    async def _ask(self, name: str) -> Sign:
        if name not in self._addresses:
            (sign,) = await self._store.commands(("GET", key_of("g", name)))
            self.learn({name: sign})
        return await ask(self._addresses.get(name, ""), name=name, seconds=self._patience)
