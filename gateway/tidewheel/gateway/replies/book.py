"""The replies that this process knows, by id and by idempotency key, and for how long."""

import asyncio
from collections import OrderedDict
from typing import Any, Final, Protocol

from tidewheel.gateway.errors import GatewayError, InvalidRequestError, NotServedError
from tidewheel.gateway.metrics import Metrics
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.replies.snapshots import snapshot
from tidewheel.gateway.replies.terms import Terms
from tidewheel.gateway.settings import Settings

_FINAL_BYTES: Final = 512  # what a finished reply costs beside its text, about


def other_body() -> InvalidRequestError:
    """The same key came with another message."""
    message = "This idempotency key was used for another request; a key stands for one message and its exact body."
    return InvalidRequestError(message, status=422, code="idempotency_key_reused", param="Idempotency-Key")


class SharedReplies(Protocol):
    """Replies that other gateways write, through a store that all share."""

    async def follow(self, reply_id: str, scope: str) -> Reply | None:
        """A reply that follows what its owner logs. Raises NotServedError when the store is away."""

    def is_followed(self, reply: Reply) -> bool:
        """Whether another gateway writes it."""

    async def final(self, reply_id: str, scope: str) -> dict[str, Any] | None:
        """A finished reply whose events are no longer kept."""

    async def cancel(self, reply: Reply) -> None:
        """Ask its owner to end it, and wait until it has."""

    async def ids_of(self, scope: str) -> list[str]:
        """All replies of one caller."""

    async def erase(self, reply_ids: list[str]) -> None:
        """Remove everything about them."""


class ReplyBook:
    """A reply is entered when its request is new, and stays for a while after its end.

    Requests without a key are entered too when an SDK sends them, so that its retry finds the answer, for seconds.
    """

    def __init__(self, settings: Settings, *, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._shared: SharedReplies | None = None
        self._replies: dict[str, Reply] = {}
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self._finals: OrderedDict[str, tuple[str, dict[str, Any]]] = OrderedDict()
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._kept_bytes = 0

    def share(self, shared: SharedReplies) -> None:
        """Look replies up elsewhere too."""
        self._shared = shared

    # Looking up.

    def known(self, scope: str, terms: Terms) -> Reply | None:
        """The reply that a resent message attaches to. Raises InvalidRequestError when the key stands for another.

        Without a key only what an SDK calls a retry is one: the same words may well be meant twice.
        """
        if terms.key is None and not terms.sdk_retry:
            return None
        found = self._keys.get((scope, _name(terms)))
        if found is None:
            return None
        body_hash, reply_id = found
        if body_hash != terms.body_hash:
            raise other_body()
        reply = self._replies.get(reply_id)
        if reply is not None and reply.stream and not reply.log.keeps_text:
            raise expired(reply_id)
        return reply

    def reply(self, reply_id: str, scope: str) -> Reply | None:
        """A reply of this caller, if its events are here."""
        reply = self._replies.get(reply_id)
        return reply if reply is not None and reply.scope == scope else None

    async def fetch(self, reply_id: str, scope: str) -> Reply | None:
        """As ``reply``; one of another gateway is fetched from the store and followed here."""
        reply = self.reply(reply_id, scope)
        if reply is None and self._shared is not None:
            reply = await self._shared.follow(reply_id, scope)
        return reply

    async def final(self, reply_id: str, scope: str) -> dict[str, Any] | None:
        """What is left of a reply whose events are no longer kept."""
        found = self._finals.get(reply_id)
        if found is not None:
            return found[1] if found[0] == scope else None
        return await self._shared.final(reply_id, scope) if self._shared is not None else None

    async def cancel(self, reply: Reply) -> None:
        """End it now, wherever it is written."""
        if self._shared is not None and self._shared.is_followed(reply):
            await self._shared.cancel(reply)
        else:
            reply.cancel(code="cancelled")

    def headers(self, reply: Reply) -> list[tuple[str, str]]:
        """What every answer says about its reply."""
        headers = [("x-tidewheel-version", reply.version)] if reply.version else []
        if reply.resumable:
            kept = str(int(self._settings.reply_retention))
            headers += [("x-tidewheel-reply", reply.id), ("x-tidewheel-events-kept-seconds", kept)]
        return [*headers, ("x-tidewheel-resumable", "true" if reply.resumable else "false")]

    def count_resumed(self, reply: Reply) -> None:
        """A client came back to it."""
        if reply.key is not None:
            self._metrics.of(reply.key).resumed["client"].inc()

    # Entering.

    def enter(self, reply: Reply, terms: Terms) -> None:
        """A new reply; it leaves by itself."""
        self._replies[reply.id] = reply
        name = _name(terms)
        if terms.key is not None or terms.sdk_retry is not None:
            self._keys[reply.scope, name] = (terms.body_hash, reply.id)
            self._names[reply.id] = (reply.scope, name)
        reply.on_ended = lambda: self._ended(reply, terms)

    def adopt(self, reply: Reply) -> None:
        """A reply that began on another gateway."""
        self._replies[reply.id] = reply
        reply.on_ended = lambda: self._ended_adopted(reply)

    def drop(self, reply: Reply) -> None:
        """Forget a reply and everything about it."""
        self._forget(reply.id)

    async def erase_one(self, reply_id: str, scope: str) -> None:
        """Forget one reply. Raises NotServedError when there is none."""
        reply = await self.fetch(reply_id, scope)
        if reply is None and await self.final(reply_id, scope) is None:
            raise reply_not_found(reply_id)
        if reply is not None:
            await self.cancel(reply)
        if self._shared is not None:
            await self._shared.erase([reply_id])
        self._forget(reply_id)

    async def erase(self, scope: str) -> int:
        """Forget everything of one caller; how many replies there were."""
        if self._shared is not None:
            for reply_id in await self._shared.ids_of(scope):
                await self.erase_one(reply_id, scope)
        ids = [reply.id for reply in self._replies.values() if reply.scope == scope]
        ids += [reply_id for reply_id, (owner, _) in self._finals.items() if owner == scope]
        for reply_id in dict.fromkeys(ids):
            reply = self._replies.get(reply_id)
            if reply is not None:
                reply.cancel(code="erased")
            self._forget(reply_id)
        return len(set(ids))

    # The inside.

    def _ended(self, reply: Reply, terms: Terms) -> None:
        settings = self._settings
        assert reply.ending is not None
        if terms.key is None and terms.sdk_retry is not None:
            asyncio.get_running_loop().call_later(settings.resend_seconds, self._forget_name, reply.id)
        if reply.moved:
            asyncio.get_running_loop().call_soon(self._forget, reply.id)  # whoever asks follows it in the store
        elif reply.ending.kind == "failed" and reply.log.opening is None and not reply.background:
            asyncio.get_running_loop().call_soon(
                self._forget, reply.id
            )  # no token was seen: the message may be sent again
        elif reply.resumable or terms.key is not None:
            asyncio.get_running_loop().call_soon(self._keep, reply)
            asyncio.get_running_loop().call_later(settings.reply_retention, self._expire, reply)
        elif terms.sdk_retry is not None:
            asyncio.get_running_loop().call_later(settings.resend_seconds, self._forget, reply.id)
        else:
            asyncio.get_running_loop().call_soon(self._forget, reply.id)

    def _ended_adopted(self, reply: Reply) -> None:
        if reply.moved:
            asyncio.get_running_loop().call_soon(self._forget, reply.id)
            return
        asyncio.get_running_loop().call_soon(self._keep, reply)
        asyncio.get_running_loop().call_later(self._settings.reply_retention, self._expire, reply)

    def _keep(self, reply: Reply) -> None:
        size = _FINAL_BYTES + reply.log.bytes_since(0)
        if reply.ending is not None and reply.ending.answer is not None:
            size += len(reply.ending.answer.body)
        self._kept[reply.id] = size
        self._kept_bytes += size
        while self._kept_bytes > self._settings.kept_reply_bytes and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _expire(self, reply: Reply) -> None:
        if self._replies.pop(reply.id, None) is None:
            return
        self._finals[reply.id] = (reply.scope, snapshot(reply))
        reply.log.drop_text()
        asyncio.get_running_loop().call_later(self._settings.final_retention, self._forget, reply.id)

    def _forget(self, reply_id: str) -> None:
        self._replies.pop(reply_id, None)
        self._finals.pop(reply_id, None)
        self._kept_bytes -= self._kept.pop(reply_id, 0)
        self._forget_name(reply_id)

    def _forget_name(self, reply_id: str) -> None:
        name = self._names.pop(reply_id, None)
        if name is not None and self._keys.get(name, ("", ""))[1] == reply_id:
            del self._keys[name]


def _name(terms: Terms) -> str:
    return f"key:{terms.key}" if terms.key is not None else f"sdk:{terms.body_hash}"


def check_position(reply: Reply, after: int | None) -> None:
    """Raises for an event number that this reply cannot be resumed from."""
    if after is not None and after > reply.shown:
        message = f"The reply has {reply.shown} events so far; it cannot be resumed after event {after}."
        raise InvalidRequestError(message, code="event_not_sent", param="Last-Event-ID")


def expired(reply_id: str) -> GatewayError:
    """The events are gone, the text is not."""
    link = f"/v1/replies/{reply_id}"
    return GatewayError(
        410,
        f"The events of this reply are no longer kept; its final text is at {link}.",
        code="stream_expired",
        headers=(("link", f'<{link}>; rel="alternate"'),),
    )


def background_unavailable() -> InvalidRequestError:
    """Nobody could fetch it: the next request may come to another process, which does not know it."""
    message = "Nothing is kept here that another process could find, so 'background' is not available; leave it out."
    return InvalidRequestError(message, code="background_unavailable", param="background")


def store_away() -> NotServedError:
    """A reply in the background would be lost with its connection."""
    message = "Replies cannot be kept at the moment, so none is produced in the background; try again shortly."
    return NotServedError(503, message, code="reply_store_unavailable", retry_after=1.0)


def reply_not_found(reply_id: str) -> NotServedError:
    """No such reply, or somebody else's: which of the two is not told."""
    return NotServedError(404, f"There is no reply '{reply_id[:64]}' of yours.", code="reply_not_found")
