"""Redis or Valkey as the store of replies: one write for all that a turn asks, and every answer bounded in time.

All logs that have something new are appended to by one script call. While one is on its way the next gathers, and not
sooner than ``--log-window`` after the last, unless a reply begins: the cost of a call is shared by many events and the
first token does not wait. Everything else that is asked in the same turn of the loop, by however many requests, leaves
as one pipeline on one connection.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from tidewheel.gateway.patience import patience
from tidewheel.gateway.replies.stores.line import Script
from tidewheel.gateway.replies.stores.scripts import APPEND, CREATE, END, TAKE

_log = logging.getLogger(__name__)

OnDone = Callable[["Outcome", int], object]

_PREFIX: Final = "tw1:"
GATEWAYS: Final = _PREFIX + "gateways"


class StoreAwayError(Exception):
    """The store did not answer in time, or cannot take anything."""


class Outcome(Enum):
    """What became of an append. Refused: another gateway has taken the reply over, or its log is gone."""

    ACCEPTED = auto()
    REFUSED = auto()
    AWAY = auto()


def key_of(kind: str, name: str) -> str:
    """``r`` reply, ``l`` log, ``f`` final text, ``k`` idempotency key, ``u`` replies of a user, ``g`` a gateway's sign
    of life, ``o`` its open replies, ``i`` its inbox, ``n`` where else somebody listens."""
    return f"{_PREFIX}{kind}:{name}"


class RedisStore:
    """Raises StoreAwayError for whatever keeps an answer away; what to do then is decided elsewhere."""

    def __init__(self, url: str, *, timeout: float, window: float) -> None:
        self._timeout = timeout
        self._window = window
        self._client = Redis.from_url(
            url,
            socket_timeout=None,  # the limit is around the whole call, and in this loop's own time
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
            protocol=3,
        )
        self._append = Script(APPEND, self._client.connection_pool)
        self._asked: list[_Asked] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._pending: dict[str, _Pending] = {}
        self._flushing = False
        self._timer: asyncio.Handle | None = None
        self._sent_at = -1e9

    @property
    def address(self) -> tuple[str, int] | None:
        """Where the store is; None for one that is reached by a file."""
        known = self._client.connection_pool.connection_kwargs
        return (known["host"], known["port"]) if "host" in known else None

    # Logs.

    def append(self, reply_id: str, offset: int, data: bytes, on_done: OnDone, *, count: int, urgent: bool) -> None:
        """Append to a log that must be ``offset`` bytes long; ``on_done`` is told what became of all up to ``count``.

        What is appended to one log before the next call is one write, of which its last ``on_done`` hears.
        """
        pending = self._pending.get(reply_id)
        if pending is None:
            self._pending[reply_id] = _Pending(offset, data, on_done, count)
        else:
            pending.data += data
            pending.on_done, pending.count = on_done, count
        if not self._flushing and (urgent or self._timer is None):
            self._schedule(urgent=urgent)

    def _schedule(self, *, urgent: bool) -> None:
        wait = 0.0 if urgent else self._sent_at + self._window - self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            self._loop.call_later(wait, self._start_flush) if wait > 0 else self._loop.call_soon(self._start_flush)
        )

    def _start_flush(self) -> None:
        self._timer = None
        if self._pending and not self._flushing:
            self._flushing = True
            task = self._loop.create_task(self._flush())
            task.add_done_callback(lambda done: done.exception())

    async def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        self._sent_at = self._loop.time()
        refused: set[int] | None = None
        try:
            keys = [key_of("l", reply_id).encode() for reply_id in pending]
            arguments = [part for entry in pending.values() for part in (b"%d" % entry.offset, entry.data)]
            async with patience(self._timeout):
                refused = set(await self._append.run(keys, arguments))
        except (RedisError, OSError, TimeoutError) as error:
            _log.debug("an append has no answer: %s", error)
        finally:
            self._flushing = False
            for number, entry in enumerate(pending.values(), start=1):
                outcome = (
                    Outcome.AWAY if refused is None else Outcome.REFUSED if number in refused else Outcome.ACCEPTED
                )
                entry.on_done(outcome, entry.count)
            if self._pending:
                self._schedule(urgent=False)

    # Anything else.

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script."""
        rest = (len(keys), *keys, *arguments)
        digest = sha1(script.encode(), usedforsecurity=False).hexdigest()  # by which the store knows it
        try:
            (answer,) = await self._ask((("EVALSHA", digest, *rest),))
        except NoScriptError:
            (answer,) = await self.commands(("EVAL", script, *rest))
        except RedisError as error:
            raise _away(error) from None
        return answer

    async def commands(self, *commands: Sequence[Any]) -> list[Any]:
        """Several commands in one go."""
        try:
            return await self._ask(commands)
        except RedisError as error:
            raise _away(error) from None

    async def _ask(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        """With whatever else is asked in this turn. Raises RedisError for a command that the store refused."""
        asked = _Asked(tuple(commands), self._loop.create_future())
        if not self._asked:
            self._loop.call_soon(self._send_asked)
        self._asked.append(asked)
        return await asked.answers

    def _send_asked(self) -> None:
        asked, self._asked = self._asked, []
        call = self._loop.create_task(self._call(asked))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, asked: Sequence["_Asked"]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for each in asked:
            for command in each.commands:
                pipeline.execute_command(*command)
        try:
            async with patience(self._timeout):
                answers = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError, TimeoutError) as error:
            for each in asked:
                each.fail(_away(error))
            return
        except asyncio.CancelledError:
            for each in asked:
                each.answers.cancel()
            raise
        for each in asked:
            own, answers = answers[: len(each.commands)], answers[len(each.commands) :]
            each.take(own)

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()


class _Asked:
    """Commands of one caller, and where it waits for their answers."""

    __slots__ = ("answers", "commands")

    def __init__(self, commands: Sequence[Sequence[Any]], answers: asyncio.Future[list[Any]]) -> None:
        self.commands = commands
        self.answers = answers

    def take(self, answers: list[Any]) -> None:
        refusal = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if refusal is not None:
            self.fail(refusal)
        elif not self.answers.done():
            self.answers.set_result(answers)

    def fail(self, error: Exception) -> None:
        if not self.answers.done():
            self.answers.set_exception(error)


def _away(error: Exception) -> StoreAwayError:
    return StoreAwayError(f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class _Pending:
    offset: int
    data: bytes
    on_done: OnDone
    count: int


__all__ = ["APPEND", "CREATE", "END", "GATEWAYS", "TAKE", "Outcome", "RedisStore", "StoreAwayError", "key_of"]
