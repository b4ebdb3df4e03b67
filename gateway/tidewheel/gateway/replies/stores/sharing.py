"""Replies that several gateways share: who writes one, who follows it, and who takes it over.

Each gateway gives a sign of life with an expiry (``--lease-seconds``). A reply belongs to the gateway that its record
names. One whose owner is dead is taken over in one step by whoever notices first, a follower at once, the sweep within
a second; the mark that the new owner appends changes the log's length, and the old one, should it wake up, can append
nothing any more. Dead is an owner whose sign of life has expired and who does not answer on its lifeline either, or
whose lifeline is refused: that is known at once when a client comes back from it.

While the store is away new replies are not resumable, which the gateway says in their headers, and nothing waits.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from tidewheel.gateway.errors import NotServedError
from tidewheel.gateway.metrics import Metrics
from tidewheel.gateway.replies.reply import Ending, Reply
from tidewheel.gateway.replies.stores.codec import MARK, LogFormatError, block, decode, encode_owner
from tidewheel.gateway.replies.stores.journal import StoreJournal, ending_of
from tidewheel.gateway.replies.stores.lifeline import Lifeline, Sign, own_address
from tidewheel.gateway.replies.stores.neighbours import Neighbours
from tidewheel.gateway.replies.stores.records import ReplyRecord
from tidewheel.gateway.replies.stores.redis_store import (
    CREATE,
    GATEWAYS,
    TAKE,
    RedisStore,
    StoreAwayError,
    key_of,
)
from tidewheel.gateway.replies.stores.sealing import SealError, Seals
from tidewheel.gateway.replies.terms import Terms
from tidewheel.gateway.settings import Settings

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TICKS_PER_LEASE: Final = 4
_PRESENCE_MS: Final = 15_000
_TAKEN_AT_ONCE: Final = 50
_LOOKED_AT_ONCE: Final = 100


def batched(items: list[T], size: int) -> Iterator[list[T]]:
    """Slices of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


@dataclass(slots=True)
class _Mirror:
    """A reply that another gateway writes, and how much of its log is here."""

    reply: Reply
    reply_id: str
    offset: int = len(MARK)
    owner: str = ""


class Sharing:
    """One per process. ``on_taken`` starts the work on a reply that is ours from now on."""

    def __init__(
        self,
        settings: Settings,
        store: RedisStore,
        seals: Seals,
        *,
        metrics: Metrics,
        adopt: Callable[[Reply], object],
        on_taken: Callable[[Reply, ReplyRecord], object],
    ) -> None:
        self._settings = settings
        self._store = store
        self._seals = seals
        self._metrics = metrics
        self._adopt = adopt
        self._on_taken = on_taken
        self._gateway = secrets.token_hex(8)
        self._mirrors: dict[str, _Mirror] = {}
        self._owned: dict[str, Reply] = {}
        self._polling: asyncio.Task[None] | None = None
        self._presence_at = -1e9
        self._lifeline = Lifeline(self._gateway)
        self._address = ""
        self._neighbours = Neighbours(store, lease_seconds=settings.lease_seconds)
        self.is_available = False

    # What an exchange asks.

    async def claim(self, reply: Reply, terms: Terms, record: ReplyRecord) -> str | None:
        """Enter a new reply. The id and body hash (``id|hash``) that its key stands for already; None when it is ours.

        When the store is away the reply is not resumable, and says so.
        """
        if not self.is_available:
            self._go_without(reply)
            return None
        keys = [
            key_of("k", f"{reply.scope}:{terms.key}"),
            key_of("r", reply.id),
            key_of("l", reply.id),
            key_of("o", self._gateway),
            key_of("u", reply.scope),
        ]
        sealed = self._seals.seal(record.encode())
        kept = round(self._settings.final_retention * 1000)
        has_key = int(terms.key is not None)
        try:
            known = await self._store.run(
                CREATE, keys, [reply.id, terms.body_hash, has_key, self._gateway, sealed, MARK, kept, reply.scope]
            )
        except StoreAwayError as error:
            self._note_away(error)
            self._go_without(reply)
            return None
        if known is not None:
            return str(known.decode())
        self._own(reply, offset=len(MARK), opened=False)
        return None

    def _go_without(self, reply: Reply) -> None:
        reply.resumable = False
        self._metrics.store.not_resumable.inc()

    def _own(self, reply: Reply, *, offset: int, opened: bool) -> None:
        journal = StoreJournal(
            reply, self._store, self._seals, self._settings, gateway=self._gateway, offset=offset, opened=opened
        )
        reply.keep_in(journal)
        reply.listened_elsewhere = lambda: self._is_listened_elsewhere(reply.id)
        self._owned[reply.id] = reply

    # SharedReplies.

    async def follow(self, reply_id: str, scope: str) -> Reply | None:
        """See SharedReplies."""
        mirror = self._mirrors.get(reply_id)
        if mirror is not None:
            return mirror.reply if mirror.reply.scope == scope else None
        try:
            scope_there, record, owner, exists = await self._read_record(reply_id)
        except StoreAwayError as error:
            raise self._away(error) from None
        if scope_there != scope or record is None or not exists:
            return None
        for meanwhile in (self._owned.get(reply_id), self._mirrored(reply_id)):
            if meanwhile is not None and not meanwhile.moved:
                return meanwhile  # taken over, or followed, for somebody else who asked in the same moment
        reply = self._reply_of(record)
        mirror = self._mirrors[reply_id] = _Mirror(reply, reply_id, owner=owner)
        reply.is_mirror = True
        reply.on_abandoned = lambda: self._drop_mirror(mirror)
        asyncio.get_running_loop().call_later(self._settings.listener_timeout, self._drop_unheard, mirror)
        try:
            await self._store.commands(("SET", key_of("n", reply_id), "1", "PX", _PRESENCE_MS))
            self._neighbours.doubt(owner)
            await self._poll_one(mirror)
        except StoreAwayError as error:
            self._drop_mirror(mirror)
            raise self._away(error) from None
        self._start_polling()
        return reply

    def _mirrored(self, reply_id: str) -> Reply | None:
        mirror = self._mirrors.get(reply_id)
        return mirror.reply if mirror is not None else None

    def is_followed(self, reply: Reply) -> bool:
        """See SharedReplies."""
        return reply.id in self._mirrors

    async def final(self, reply_id: str, scope: str) -> dict[str, Any] | None:
        """See SharedReplies."""
        try:
            (sealed,) = await self._store.commands(("GET", key_of("f", reply_id)))
        except StoreAwayError as error:
            raise self._away(error) from None
        if sealed is None:
            return None
        final = orjson.loads(self._seals.unseal(sealed))
        found: dict[str, Any] = final["reply"]
        return found if final["scope"] == scope else None

    async def cancel(self, reply: Reply) -> None:
        """See SharedReplies."""
        mirror = self._mirrors.get(reply.id)
        if mirror is None:
            return
        try:
            await self._store.commands(
                ("RPUSH", key_of("i", mirror.owner), f"cancel:{reply.id}"),
                ("PEXPIRE", key_of("i", mirror.owner), 60_000),
            )
            async with asyncio.timeout(4 * self._settings.lease_seconds):
                while reply.ending is None:
                    await asyncio.sleep(self._settings.mirror_seconds)
        except StoreAwayError as error:
            raise self._away(error) from None
        except TimeoutError:
            return

    async def ids_of(self, scope: str) -> list[str]:
        """See SharedReplies."""
        try:
            (members,) = await self._store.commands(("SMEMBERS", key_of("u", scope)))
        except StoreAwayError as error:
            raise self._away(error) from None
        return sorted(member.decode() for member in members)

    async def erase(self, reply_ids: list[str]) -> None:
        """See SharedReplies."""
        try:
            for reply_id in reply_ids:
                key, scope = (await self._store.commands(("HMGET", key_of("r", reply_id), "key", "scope")))[0]
                names = [key_of(kind, reply_id) for kind in "rlfn"] + ([key.decode()] if key else [])
                mirror = self._mirrors.pop(reply_id, None)
                if mirror is not None:
                    mirror.reply.end_as(Ending("cancelled", "erased"))
                await self._store.commands(("DEL", *names))
                if scope:
                    await self._store.commands(("SREM", key_of("u", scope.decode()), reply_id))
        except StoreAwayError as error:
            raise self._away(error) from None

    # Life.

    async def run(self) -> None:
        """Give signs of life, look after replies whose owner gives none; until cancelled."""
        while True:
            try:
                await self._tick()
                await self._sweep()
            except StoreAwayError as error:
                self._note_away(error)
            await asyncio.sleep(self._settings.lease_seconds / _TICKS_PER_LEASE)

    async def check(self) -> None:
        """One sign of life, so that the first request finds the store."""
        try:
            host = await asyncio.to_thread(own_address, self._settings.host, towards=self._store.address)
            self._address = await self._lifeline.open(host)
        except OSError as error:
            _log.warning("others cannot ask whether this gateway lives; its sign in the store must do: %s", error)
        try:
            await self._tick()
        except StoreAwayError as error:
            self._note_away(error)

    async def leave(self) -> None:
        """Others may take over what is still open, at once."""
        for reply in list(self._owned.values()):
            if reply.ending is None:
                reply.leave_to_another()
        self._lifeline.close()
        with contextlib.suppress(StoreAwayError):
            await self._store.commands(("DEL", key_of("g", self._gateway)))
        await self._store.close()

    async def _tick(self) -> None:
        me, lease = self._gateway, round(self._settings.lease_seconds * 1000)
        now = asyncio.get_running_loop().time()
        commands: list[tuple[Any, ...]] = [
            ("SET", key_of("g", me), self._address or "1", "PX", lease),
            ("SADD", GATEWAYS, me),
            ("LPOP", key_of("i", me), 100),
        ]
        if now - self._presence_at > _PRESENCE_MS / 3000:
            self._presence_at = now
            listened = [mirror.reply_id for mirror in self._mirrors.values() if mirror.reply.listeners]
            commands += [("SET", key_of("n", reply_id), "1", "PX", _PRESENCE_MS) for reply_id in listened]
        began = now
        _, _, inbox, *_ = await self._store.commands(*commands)
        self._metrics.store.ack.observe(asyncio.get_running_loop().time() - began)
        self._note_back()
        self._owned = {reply_id: reply for reply_id, reply in self._owned.items() if reply.ending is None}
        for entry in inbox or ():
            action, _, reply_id = entry.decode().partition(":")
            reply = self._owned.get(reply_id)
            if action == "cancel" and reply is not None:
                reply.cancel(code="cancelled")

    async def _sweep(self) -> None:
        (members,) = await self._store.commands(("SMEMBERS", GATEWAYS))
        others = sorted(name.decode() for name in members if name.decode() != self._gateway)
        if not others:
            return
        (signs,) = await self._store.commands(("MGET", *(key_of("g", name) for name in others)))
        self._neighbours.learn(dict(zip(others, signs, strict=True)))
        for name in [name for name, sign in zip(others, signs, strict=True) if sign is None]:
            if await self._neighbours.ask(name) is Sign.ALIVE:
                continue  # late, not dead
            (left,) = await self._store.commands(("SMEMBERS", key_of("o", name)))
            for some in batched(sorted(left), _TAKEN_AT_ONCE):
                await self._tick()  # taking many over must not look like our own death
                await asyncio.gather(*(self._take(reply_id.decode()) for reply_id in some))
            if not left:
                self._neighbours.forget(name)
                await self._store.commands(("SREM", GATEWAYS, name))

    async def _take(self, reply_id: str) -> None:
        keys = [key_of("r", reply_id), key_of("l", reply_id), key_of("o", self._gateway)]
        mark = block(encode_owner(), self._seals.seal)
        taken = await self._store.run(TAKE, keys, [reply_id, self._gateway, key_of("g", ""), key_of("o", ""), mark])
        mirror = self._mirrors.get(reply_id)
        if taken is None:
            return
        sealed, log, _ = taken
        try:
            record = ReplyRecord.decode(self._seals.unseal(sealed))
            if record is None or log[: len(MARK)] != MARK:
                raise LogFormatError("it was written by a version that this one does not understand")
            reply = mirror.reply if mirror is not None else self._reply_of(record)
            offset = mirror.offset if mirror is not None else len(MARK)
            self._restore(reply, log[offset:])
        except (LogFormatError, SealError) as error:
            _log.error("a reply of a lost gateway cannot be carried on: %s", error, extra={"request_id": reply_id})
            return
        self._mirrors.pop(reply_id, None)
        reply.is_mirror = False
        self._own(reply, offset=len(log), opened=reply.log.opening is not None)
        self._adopt(reply)
        _log.warning("a reply of a lost gateway is carried on here", extra={"request_id": reply_id})
        self._on_taken(reply, record)

    # Following.

    def _start_polling(self) -> None:
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        while self._mirrors:
            for some in batched(list(self._mirrors.values()), _LOOKED_AT_ONCE):
                await asyncio.gather(*map(self._look_at, some))  # one pipeline, not a round trip for each
            await asyncio.sleep(self._settings.mirror_seconds)

    async def _look_at(self, mirror: _Mirror) -> None:
        try:
            await self._poll_one(mirror)
        except StoreAwayError as error:
            self._note_away(error)
            mirror.reply.leave_to_another()  # its listeners come back, here or elsewhere
            self._drop_mirror(mirror)

    async def _poll_one(self, mirror: _Mirror) -> None:
        reply_id, offset = mirror.reply_id, mirror.offset
        data, (owner, ended), lives = await self._store.commands(
            ("GETRANGE", key_of("l", reply_id), offset, -1),
            ("HMGET", key_of("r", reply_id), "owner", "ended"),
            ("EXISTS", key_of("g", mirror.owner)),
        )
        if self._mirrors.get(reply_id) is not mirror or mirror.offset != offset:
            return  # meanwhile somebody else has looked, or the reply is ours
        try:
            mirror.offset += self._restore(mirror.reply, data)
        except (LogFormatError, SealError):
            mirror.reply.leave_to_another()
            self._drop_mirror(mirror)
            return
        if owner is None:
            mirror.reply.cancel(code="erased")
            self._drop_mirror(mirror)
        elif ended:
            await self._finish_mirror(mirror)
        elif owner.decode() != mirror.owner:
            mirror.owner = owner.decode()
        elif not lives and await self._neighbours.ask(mirror.owner) is not Sign.ALIVE:
            await self._take(reply_id)

    async def _finish_mirror(self, mirror: _Mirror) -> None:
        (sealed,) = await self._store.commands(("GET", key_of("f", mirror.reply_id)))
        self._drop_mirror(mirror)
        self._adopt(mirror.reply)
        if sealed is None:
            mirror.reply.leave_to_another()
            return
        final = orjson.loads(self._seals.unseal(sealed))
        mirror.reply.end_as(ending_of(final))

    def _drop_unheard(self, mirror: _Mirror) -> None:
        if not mirror.reply.listeners:
            self._drop_mirror(mirror)

    def _drop_mirror(self, mirror: _Mirror) -> None:
        self._mirrors.pop(mirror.reply_id, None)

    def _restore(self, reply: Reply, data: bytes) -> int:
        decoded, read = decode(data, self._seals.unseal)
        log = reply.log
        if decoded.opening is not None:
            log.opening, log.prompt_ids = decoded.opening, decoded.prompt_ids
        log.finished = log.finished or decoded.finished
        log.restore(decoded.events)
        reply.acknowledged(log.count)
        return read

    def _reply_of(self, record: ReplyRecord) -> Reply:
        reply = Reply(
            record.reply_id,
            scope=record.scope,
            stream=record.stream,
            resumable=True,
            keeps_text=True,
            listener_timeout=self._settings.listener_timeout,
            created=record.created,
        )
        reply.model, reply.version, reply.background = record.model, record.version, record.background
        reply.response = record.response
        return reply

    async def _read_record(self, reply_id: str) -> tuple[str, ReplyRecord | None, str, bool]:
        (sealed, scope, owner), exists = await self._store.commands(
            ("HMGET", key_of("r", reply_id), "record", "scope", "owner"), ("EXISTS", key_of("l", reply_id))
        )
        if sealed is None:
            return "", None, "", False
        return scope.decode(), ReplyRecord.decode(self._seals.unseal(sealed)), owner.decode(), bool(exists)

    async def _is_listened_elsewhere(self, reply_id: str) -> bool:
        try:
            return bool((await self._store.commands(("EXISTS", key_of("n", reply_id))))[0])
        except StoreAwayError:
            return False

    # Away and back.

    def _note_away(self, error: StoreAwayError) -> None:
        if self.is_available:
            _log.error("the reply store is away: new replies are not resumable: %s", error)
        self.is_available = False
        self._metrics.store.away.set(1)
        notice = b""
        for reply in list(self._owned.values()):
            reply.lose_journal(notice)
        self._owned.clear()

    def _note_back(self) -> None:
        if not self.is_available:
            _log.warning("the reply store answers: new replies are resumable")
        self.is_available = True
        self._metrics.store.away.set(0)

    def _away(self, error: StoreAwayError) -> NotServedError:
        self._note_away(error)
        message = "Replies of other gateways cannot be looked up at the moment; try again shortly."
        return NotServedError(503, message, code="reply_store_unavailable", retry_after=1.0)
