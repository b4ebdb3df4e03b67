"""Writes one reply into the store before it is shown."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import orjson

from tidewheel.gateway.replies.reply import Ending, Reply, WholeAnswer
from tidewheel.gateway.replies.snapshots import snapshot
from tidewheel.gateway.replies.stores.codec import block, encode_event, encode_opening
from tidewheel.gateway.replies.stores.redis_store import END, Outcome, RedisStore, StoreAwayError, key_of
from tidewheel.gateway.replies.stores.sealing import Seals
from tidewheel.gateway.replies.tokenlog import Emission
from tidewheel.gateway.settings import Settings

_log = logging.getLogger(__name__)

_NOTICE: Final = b'data: {"object":"chat.completion.chunk","choices":[],"tidewheel":{"type":"not_resumable"}}\n\n'


class StoreJournal:
    """Of one reply that this gateway owns. Unanswered, it lets the reply go on without it.

    Refused, it asks who owns the reply now. If another gateway does, clients are sent there: what they would be shown
    here from now on is not what the log says. If nobody does (a store that came back empty), the reply goes on here.
    """

    __slots__ = ("_gateway", "_offset", "_opened", "_refused", "_reply", "_seals", "_settings", "_store", "_tasks")

    def __init__(
        self,
        reply: Reply,
        store: RedisStore,
        seals: Seals,
        settings: Settings,
        *,
        gateway: str,
        offset: int,
        opened: bool,
    ) -> None:
        self._reply = reply
        self._store = store
        self._seals = seals
        self._settings = settings
        self._gateway = gateway
        self._offset = offset
        self._opened = opened
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = False

    def append(self, frames: Sequence[bytes], emissions: Sequence[Emission], *, count: int, urgent: bool) -> None:
        """See Journal."""
        if self._refused:
            return
        log = self._reply.log
        if self._opened and len(frames) == 1:
            content = encode_event(frames[0], emissions[0], finished=log.finished)
        else:
            content = self._encode(frames, emissions)
        data = block(content, self._seals.seal)
        self._store.append(self._reply.id, self._offset, data, self._done, count=count, urgent=urgent)
        self._offset += len(data)

    def _encode(self, frames: Sequence[bytes], emissions: Sequence[Emission]) -> bytes:
        log, entries = self._reply.log, list[bytes]()
        if not self._opened and log.opening is not None:
            self._opened = True
            entries.append(encode_opening(log.opening, log.prompt_ids))
        for frame, emission in zip(frames, emissions, strict=True):
            entries.append(encode_event(frame, emission, finished=log.finished))
        return b"".join(entries)

    def _done(self, outcome: Outcome, count: int) -> None:
        if outcome is Outcome.ACCEPTED:
            self._reply.acknowledged(count)
        elif outcome is Outcome.AWAY:
            self._reply.lose_journal(_NOTICE)
        elif not self._refused:
            self._refused = True
            self._start(self._yield_or_go_on())

    def end(self, ending: Ending) -> None:
        """See Journal."""
        self._start(self._end(ending))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _yield_or_go_on(self) -> None:
        reply, owner = self._reply, None
        with contextlib.suppress(StoreAwayError):
            (owner,) = await self._store.commands(("HGET", key_of("r", reply.id), "owner"))
        if owner is None or owner.decode() == self._gateway:
            reply.lose_journal(_NOTICE)
        else:
            _log.warning("another gateway has taken a reply over", extra={"request_id": reply.id})
            reply.leave_to_another()
            reply.on_abandoned()

    async def _end(self, ending: Ending) -> None:
        reply, settings = self._reply, self._settings
        while reply.shown < reply.log.count and reply.is_journalled:
            await asyncio.sleep(self._settings.log_window)
        free_again = ending.kind == "failed" and reply.log.opening is None and not reply.background
        keys = [key_of("r", reply.id), key_of("l", reply.id), key_of("f", reply.id), key_of("o", self._gateway)]
        final = self._seals.seal(orjson.dumps(final_of(reply, ending)))
        kept = [round(settings.reply_retention * 1000), round(settings.final_retention * 1000)]
        with contextlib.suppress(StoreAwayError):  # whoever takes it over finds its end in the log
            await self._store.run(END, keys, [reply.id, self._gateway, final, *kept, int(free_again)])
        reply.end_accepted()


def final_of(reply: Reply, ending: Ending) -> dict[str, Any]:
    """What stays of a reply when its events are gone."""
    answer = ending.answer
    whole = None
    if answer is not None:
        whole = {
            "status": answer.status,
            "body": answer.body.decode(),
            "headers": [list(pair) for pair in answer.headers],
        }
    return {"scope": reply.scope, "kind": ending.kind, "code": ending.code, "answer": whole, "reply": snapshot(reply)}


def ending_of(final: dict[str, Any]) -> Ending:
    """The way back."""
    whole = final["answer"]
    answer = None
    if whole is not None:
        headers = [(name, value) for name, value in whole["headers"]]
        answer = WholeAnswer(whole["status"], whole["body"].encode(), headers)
    return Ending(final["kind"], final["code"], answer)
