"""Watches one request for silence on both sides, with one timer that sleeps until the next could be due."""

import asyncio
from typing import Final

from tidewheel.gateway.relay import Answer
from tidewheel.gateway.replicas import Replica
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.settings import Settings

_LEAST_SLEEP: Final = 0.01


class SilenceWatch:
    """Sends heartbeats to whoever listens to a silent stream; ends an answer whose replica is silent.

    Before the first token silence looks like queueing or prefill, so only ``--first-byte-timeout`` and
    ``--idle-timeout`` bound it. After it, a silence of ``--suspect-seconds`` is a fault when the replica is under
    suspicion as a whole: a second signal, see ``suspicion``.
    """

    __slots__ = ("_answer", "_loop", "_replica", "_reply", "_settings", "_timer")

    def __init__(self, reply: Reply, settings: Settings) -> None:
        self._reply = reply
        self._settings = settings
        self._answer: Answer | None = None
        self._replica: Replica | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, answer: Answer | None, replica: Replica | None = None) -> None:
        """From now on watch this attempt, and the client all along."""
        self._answer = answer
        self._replica = replica
        self._look()

    def stop(self) -> None:
        """The request is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        due = [self._look_at_client(now), self._look_at_replica(now)]
        self.stop()
        next_due = min((moment for moment in due if moment is not None), default=None)
        if next_due is not None:
            self._timer = self._loop.call_at(max(next_due, now + _LEAST_SLEEP), self._look)

    def _look_at_client(self, now: float) -> float | None:
        reply, interval = self._reply, self._settings.heartbeat_interval
        if not reply.stream:
            return None
        if self._answer is not None and self._answer.paused:
            return now + interval  # a client that takes nothing needs no heartbeat
        if now - reply.last_write >= interval:
            reply.beat()
        return reply.last_write + interval

    def _look_at_replica(self, now: float) -> float | None:
        answer, settings = self._answer, self._settings
        if answer is None or answer.done.done():
            return None
        limit = settings.idle_timeout if answer.status else settings.first_byte_timeout
        if answer.paused:
            return now + limit
        silent = now - answer.last_read
        if silent >= limit:
            answer.time_out("the replica has been silent for too long")
            return None
        decoding = answer.streaming and answer.observer.first_token_at is not None
        if not self._reply.stream or self._replica is None:
            return answer.last_read + limit
        if not decoding:  # the first token will not wake us
            return min(answer.last_read + limit, now + settings.suspect_seconds * settings.probe_share)
        return self._look_at_decoding(answer, self._replica, now=now, silent=silent, limit=limit)

    def _look_at_decoding(
        self, answer: Answer, replica: Replica, *, now: float, silent: float, limit: float
    ) -> float | None:
        settings = self._settings
        doubt_after = settings.suspect_seconds * settings.probe_share
        if silent < doubt_after:
            return answer.last_read + doubt_after
        doubted = replica.doubt(now=now)
        if silent >= settings.suspect_seconds and doubted:
            answer.time_out("the replica stopped in the middle of its replies")
            return None
        if silent >= settings.lone_silence:
            answer.time_out("the replica stopped in the middle of this reply")
            return None
        return min(now + settings.suspect_seconds / 20, answer.last_read + limit)
