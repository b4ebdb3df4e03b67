"""Attempts at one reply: a replica is picked, asked, and its answer delivered; before its first byte another may try.

Everything taken for an attempt is entered into an ``ExitStack``, so that it is given back exactly once, however it
ends.
"""

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tidewheel.gateway.errors import no_ready_replica
from tidewheel.gateway.inference import InferenceRequest, engine_head
from tidewheel.gateway.observation import InvalidReplyError
from tidewheel.gateway.peers.region import Peer
from tidewheel.gateway.placement.prefix import Prefix, prefix_of
from tidewheel.gateway.relay import Answer
from tidewheel.gateway.replicas import Replica, RetryBudget
from tidewheel.gateway.replies.continued import Rewriter
from tidewheel.gateway.replies.reading import Reader
from tidewheel.gateway.replies.reply import WholeAnswer
from tidewheel.gateway.routing import Route
from tidewheel.gateway.sse import EventTooLongError
from tidewheel.gateway.tracing import AttemptTrace
from tidewheel.gateway.upstream import BrokenError, UnreachableError, UpstreamConnection
from tidewheel.gateway.verdicts import (
    PRESSURE,
    TryAgainError,
    failure_reason,
    judge_body,
    judge_failure,
    judge_status,
    retry_after_seconds,
    unreachable,
)
from tidewheel.gateway.work import Work

_log = logging.getLogger(__name__)

_PASSED_HEADERS: Final = (b"retry-after", b"retry-after-ms", b"x-should-retry", b"openai-processing-ms")


@dataclass(frozen=True, slots=True)
class Asked:
    """What an attempt sends: the client's own request, or one that carries on with its reply."""

    path: str
    body: bytes
    rewriter: Rewriter | None = None


class Attempts:
    """Of one request. ``answer`` is the latest one; ``inference`` is what prefixes are read from."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._connection: UpstreamConnection | None = None
        self._prefix: Prefix | None = None
        self._trace: AttemptTrace | None = None
        self._tries = 0
        self.answer: Answer | None = None
        self.inference: InferenceRequest | None = None

    def _pick(self, route: Route, *, tried: frozenset[str]) -> Replica | None:
        """Stage *pick*: the replica for one attempt."""
        around = self._work.around
        replicas = around.router.fleet.replicas(route.key)
        if self._prefix is None and len(replicas) > 1 and not tried and self.inference is not None:
            self._prefix = self.read_prefix(route, self.inference)
        return around.placement.pick(replicas, prefix=self._prefix, cost=self._expected_tokens, tried=tried)

    def read_prefix(self, route: Route, inference: InferenceRequest) -> Prefix | None:
        tenant = self._work.visit.principal.user if self._work.visit is not None else ""
        scope = "\0".join((*route.key, tenant))
        return prefix_of(inference.fields, scope=scope, conversation=inference.conversation)

    @property
    def _expected_tokens(self) -> int:
        """Context that the request will likely hold at a replica."""
        return (
            self._work.visit.cost.expected if self._work.visit is not None and self._work.visit.cost is not None else 0
        )

    async def try_replicas(self, route: Route, asked: Asked, *, tried: frozenset[str]) -> None:
        around, fleet = self._work.around, self._work.around.router.fleet
        budget, last = fleet.budget(route.key), None
        budget.deposit()
        for _ in range(around.settings.max_attempts):
            replica = self._pick(route, tried=tried)
            if replica is None or (last is not None and not self._may_retry(last, replica, budget=budget)):
                break
            tried |= {replica.uid}
            self._tries += 1
            self._work.record.attempts = self._tries
            try:
                await self._attempt(route, replica, asked)
            except TryAgainError as failure:
                last = failure
                fields = {"request_id": self._work.id, "attempt": self._tries, "replica": replica.uid}
                _log.info("attempt failed: %s", failure.__cause__ or failure, extra=fields)
            else:
                return
        if last is None:
            raise no_ready_replica(route.table.spec.model, route.version)
        if last.answer is None:
            raise last.error
        self._pass_on(last.answer)

    def _may_retry(self, last: TryAgainError, replica: Replica, *, budget: RetryBudget) -> bool:
        if last.error.reason == "unreachable":
            return True  # no engine had any work of it, so nothing is multiplied
        # Back-pressure is not answered by asking others that are pressed too.
        pressed = last.error.status in PRESSURE and replica.hindrance(self._work.loop.time()) > 0
        return not pressed and budget.withdraw()

    async def _attempt(self, route: Route, replica: Replica, asked: Asked) -> None:
        """One try on one replica. Raises TryAgainError, LostError, or GatewayError when no other replica may try."""
        settings, reply = self._work.around.settings, self._work.reply
        assert reply is not None
        with ExitStack() as held:
            occupied = replica.occupied(
                now=self._work.loop.time(), probe_seconds=settings.connect_timeout, tokens=self._expected_tokens
            )
            held.enter_context(occupied)
            try:
                answer, failure = await self._ask(replica, asked, held=held)
            except UnreachableError as error:
                replica.suspend(now=self._work.loop.time(), seconds=settings.suspension_seconds)
                raise unreachable() from error
            if failure is None:
                self._deliver(replica, answer)
                return
            if not isinstance(failure, InvalidReplyError | EventTooLongError):
                replica.suspend(now=self._work.loop.time(), seconds=settings.suspension_seconds)
            self._work.record.lost_on = replica.uid
            raise judge_failure(failure, answer, shown=reply.log.opening is not None)

    async def attempt_there(self, peer: Peer, asked: Asked, header: bytes) -> bool:
        """False when the peer gave no success: what it lacks, this region may have."""
        settings, reply, replica = self._work.around.settings, self._work.reply, peer.replica
        assert reply is not None
        self._tries += 1
        with ExitStack() as held:
            held.enter_context(replica.occupied(now=self._work.loop.time(), probe_seconds=settings.connect_timeout))
            try:
                answer, failure = await self._ask(replica, asked, held=held, peer=header)
                if failure is None and answer.status == 200:
                    self._work.around.metrics.regions.spilled.labels(peer.region).inc()
                    self._deliver(replica, answer)
                    return True
                if failure is not None:
                    raise judge_failure(failure, answer, shown=reply.log.opening is not None)
            except (UnreachableError, TryAgainError) as error:
                replica.suspend(now=self._work.loop.time(), seconds=settings.suspension_seconds)
                _log.warning(
                    "a peer did not serve: %s", error, extra={"region": peer.region, "request_id": self._work.id}
                )
        self._connection = self.answer = None
        return False

    async def _ask(
        self, replica: Replica, asked: Asked, *, held: ExitStack, peer: bytes | None = None
    ) -> tuple[Answer, Exception | None]:
        """Send the request and wait for the end of its answer. A kept connection that proves dead is replaced once.

        ``peer`` is the ticket for another region's gateway, which gets none of what engines are told.
        """
        internal = self._work.visit.engine_headers() if self._work.visit is not None else []
        attempt = self._trace = self._work.trace.attempt(self._tries) if self._work.trace is not None else None
        if attempt is not None:
            held.callback(attempt.end)
        head = engine_head(
            self._work.request,
            path=asked.path,
            host=replica.pool.host_header,
            length=len(asked.body),
            attempt_id=f"{self._work.id}-{self._tries}",
            authorization=self._work.around.authorization() if peer is None else None,
            internal=internal if peer is None else [peer],
            trace=attempt.headers() if attempt is not None else None,
        )
        connection = await replica.pool.connect()
        answer, failure = await self._send(connection, replica, (head, asked.body), asked.rewriter, held=held)
        if connection.reused and isinstance(failure, BrokenError) and failure.untouched:
            connection = await replica.pool.connect(fresh=True)
            answer, failure = await self._send(connection, replica, (head, asked.body), asked.rewriter, held=held)
        return answer, failure

    async def _send(
        self,
        connection: UpstreamConnection,
        replica: Replica,
        request: tuple[bytes, bytes],
        rewriter: Rewriter | None,
        *,
        held: ExitStack,
    ) -> tuple[Answer, Exception | None]:
        reply = self._work.reply
        assert reply is not None
        held.callback(connection.release)
        held.callback(self._let_go)
        reader = Reader(
            reply.log,
            self._work.observer,
            asked=self._client_asks_ids,
            rewriter=rewriter,
            is_peer=not replica.is_engine,
        )
        answer = Answer(reply, reader, self._work.observer, self._work.around.settings, on_alive=replica.heard)
        self._connection, self.answer = connection, answer
        if self._trace is not None:
            self._trace.answer = answer
        assert self._work.silence is not None
        self._work.silence.watch(answer, replica if replica.is_engine else None)
        connection.send(request, answer)
        return answer, await answer.done

    def _deliver(self, replica: Replica, answer: Answer) -> None:
        reply = self._work.reply
        assert reply is not None
        if answer.streaming:
            if answer.observer.failed:
                self._work.record.note_failure(502, "upstream_error")
            reply.finish("failed" if answer.observer.failed else "completed")
            return
        if answer.status in PRESSURE:
            longest = self._work.around.settings.back_pressure_seconds
            asked = retry_after_seconds(answer)
            replica.press_back(now=self._work.loop.time(), seconds=longest if asked is None else min(asked, longest))
        judge_status(answer)
        self._pass_on(answer)

    def _pass_on(self, answer: Answer) -> None:
        """A whole answer in the replica's own words, errors included."""
        judge_body(answer)
        reply = self._work.reply
        assert reply is not None
        reason = failure_reason(answer.status)
        if reason is not None:
            self._work.record.note_failure(answer.status, reason)
        self._work.record.status = self._work.record.status or answer.status
        body = bytes(answer.body)
        kind = answer.header(b"content-type").decode("latin-1") or "application/json"
        headers = [("content-type", kind)]
        headers += [
            (name.decode(), value.decode("latin-1")) for name, value in answer.headers if name in _PASSED_HEADERS
        ]
        if answer.status in PRESSURE and retry_after_seconds(answer) is None:
            headers.append(("retry-after", "1"))
        whole = WholeAnswer(answer.status, body, headers)
        failed = answer.status >= 400
        if reply.stream:  # for those whom a heartbeat has begun the stream: what is left is its data
            event = b"event: error\n" if failed else b""
            data = event + b"data: " + b"\ndata: ".join(body.splitlines()) + b"\n\n"
            reply.fail(data, code=reason or "answered", kind="failed" if failed else "completed", answer=whole)
        else:
            reply.answer(whole, kind="failed" if failed else "completed", code=reason)

    @property
    def _client_asks_ids(self) -> bool:
        return b'"return_token_ids"' in self._work.request.body

    def pause(self) -> None:
        if self._connection is not None and self.answer is not None:
            self.answer.paused = True
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None and self.answer is not None:
            self.answer.resume()
            self._connection.resume()

    def _let_go(self) -> None:
        self._connection = None
