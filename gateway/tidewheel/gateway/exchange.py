"""One request for inference, from its first byte to its last.

An Exchange produces one reply. It owns everything that is taken for it: its place among the version's requests in
flight, a replica's load, an engine connection. Each is entered into an ``ExitStack`` the moment it is taken, so that it
is given back exactly once, whichever await the request ends at: answered, failed, or cancelled because nobody listens.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack

from tidewheel.gateway.accounting import Record, settle
from tidewheel.gateway.admission.desk import Visit
from tidewheel.gateway.admission.eta import Estimate
from tidewheel.gateway.admission.keys import Principal
from tidewheel.gateway.admission.notices import notice_event, queued_event
from tidewheel.gateway.attempts import Attempts
from tidewheel.gateway.errors import GatewayError, UpstreamError, stream_broken
from tidewheel.gateway.generation import Generation
from tidewheel.gateway.inference import InferenceRequest, parse_inference
from tidewheel.gateway.observation import ReplyObserver
from tidewheel.gateway.peers.tickets import SpillTicket, not_taken
from tidewheel.gateway.replies.book import (
    background_unavailable,
    check_position,
    expired,
    other_body,
    store_away,
)
from tidewheel.gateway.replies.listener import Listener, ListenerOptions
from tidewheel.gateway.replies.reply import Reply, WholeAnswer
from tidewheel.gateway.replies.stores.records import ReplyRecord, kept_headers
from tidewheel.gateway.replies.terms import Terms, scope_of, terms_of
from tidewheel.gateway.replies.tokenlog import Emission
from tidewheel.gateway.requests import Request
from tidewheel.gateway.responses.asking import Asking
from tidewheel.gateway.responses.listeners import accepted_event, listener_for
from tidewheel.gateway.routing import Route
from tidewheel.gateway.server import Responder
from tidewheel.gateway.silence import SilenceWatch
from tidewheel.gateway.work import Surroundings, Work, new_request_id

_log = logging.getLogger(__name__)


class Exchange:
    """Run it in a task of its own; cancel that task when the reply is given up."""

    def __init__(
        self,
        request: Request,
        responder: Responder | None,
        *,
        around: Surroundings,
        asking: Asking | None = None,
        ticket: SpillTicket | None = None,
    ) -> None:
        """``asking`` is set for a response; ``request`` is then the one for chat that produces it. A ``ticket`` came
        with what a peer sent."""
        self._request = request
        self._asking = asking
        self._ticket = ticket
        self._responder = responder
        self._around = around
        self._loop = asyncio.get_running_loop()
        reply_id = new_request_id("resp_" if asking is not None else "req-")
        self._record = Record(reply_id, request.header(b"x-request-id"), began=self._loop.time())
        self._observer = ReplyObserver(around.settings.stall_seconds)
        self._work = Work(reply_id, request, around, self._record, self._observer, self._loop)
        self._attempts = Attempts(self._work)
        self._generation = Generation(self._work, self._attempts, is_spilled=ticket is not None)
        self._scope = ""
        self._listening = False

    @property
    def id(self) -> str:
        """Of the reply."""
        return self._work.id

    async def run(self) -> None:
        """Answer the request; whatever happens, give everything back and count it once."""
        task = asyncio.current_task()
        self._begin_trace()
        with ExitStack() as held:
            held.callback(self._account)
            await self._guard(self._serve(held, give_up=task.cancel if task is not None else lambda: None))

    def _begin_trace(self) -> None:
        asking, tracing = self._asking, self._around.tracing
        if tracing is not None:
            request = asking.original if asking is not None else self._request
            self._work.trace = tracing.request(request, self.id, route=request.path)

    async def _guard(self, serving: Coroutine[object, object, None]) -> None:
        """Every failure becomes the reply's end."""
        try:
            await serving
        except GatewayError as error:
            self._refuse(error)
        except asyncio.CancelledError:
            self._record.cancelled = True
            if self._work.reply is not None:
                self._work.reply.on_abandoned = lambda: None  # this task is ending already
                self._work.reply.cancel(code="client_gone")
            raise
        except Exception:
            _log.exception("an exchange failed", extra={"request_id": self.id})
            self._refuse(UpstreamError("The gateway failed; try again.", reason="internal_error", status=500))

    async def carry_on(self, reply: Reply, record: ReplyRecord) -> None:
        """Go on with a reply whose gateway is lost; whatever happens, give everything back and count it once."""
        task = asyncio.current_task()
        self._work.id = self._record.request_id = reply.id
        self._work.reply, self._scope, self._listening = reply, record.scope, True
        reply.on_abandoned = task.cancel if task is not None else lambda: None
        self._begin_trace()
        with ExitStack() as held:
            held.callback(self._account)
            await self._guard(self._serve_taken(held, reply, record))

    async def _serve_taken(self, held: ExitStack, reply: Reply, record: ReplyRecord) -> None:
        around, log = self._around, reply.log
        reply.await_listener()
        ending = log.since(log.count - 1) if log.count else b""
        if b"data: [DONE]" in ending or b"event: error" in ending:
            reply.finish("completed" if b"[DONE]" in ending else "failed")
            return
        visit = self._work.visit = Visit(
            Principal(record.user, record.tier), self._request, background=record.background
        )
        self._record.tier = record.tier
        inference = around.desk.steer(visit, parse_inference(self._request))
        table = around.router.table(f"{record.namespace}/{inference.model.rpartition('/')[2]}")
        route = self._record.route = Route(table, record.version, pinned=False)
        reply.version, reply.key = route.version, route.key
        held.enter_context(around.metrics.of(route.key).one_in_flight(stream=inference.stream))
        held.callback(self._settle_visit, visit)
        inference = await around.desk.reserve(visit, inference, route)
        self._work.silence = SilenceWatch(reply, around.settings)
        held.callback(self._work.silence.stop)
        self._work.silence.watch(None)
        self._observer.shown_tokens, self._observer.prompt_tokens = log.settled, len(log.prompt_ids or ()) or None
        await around.router.fleet.await_ready(route.key, seconds=around.settings.continuation_wait)
        await around.desk.await_turn(visit, route, notify=None, front=True)
        await self._generation.generate(route, inference, reply, begun=log.opening is not None)

    def shut_down(self) -> None:
        """The program must leave now: say so instead of cutting the line."""
        if self._work.reply is not None and self._work.reply.is_journalled:
            self._work.reply.leave_to_another()
            return
        self._refuse(GatewayError(503, "The gateway is restarting; send the request again.", code="shutting_down"))

    async def _serve(self, held: ExitStack, *, give_up: Callable[[], object]) -> None:
        visit = self._identify()
        asked = parse_inference(self._request)
        inference = self._around.desk.steer(visit, asked)
        if self._ticket is not None and inference.model != asked.model:
            raise not_taken()
        terms = self._terms(inference)
        if self._attach(terms):
            return
        reply = self._open_reply(inference, terms, give_up=give_up)
        route = self._resolve(inference, held)
        if await self._attach_elsewhere(reply, terms, route):
            return
        held.callback(self._settle_visit, visit)
        inference = await self._around.desk.reserve(visit, inference, route)
        self._listen(reply, route, held)
        if await self._generation.spill(visit, route, inference, reply):
            return
        await self._await_turn(visit, route, reply)
        await self._generation.generate(route, inference, reply)

    def _identify(self) -> Visit:
        """Stage *identify*: whose request it is."""
        ticket = self._ticket
        if ticket is None:
            visit = self._work.visit = self._around.desk.identify(self._request)
        else:
            principal = Principal(ticket.user, ticket.tier)
            visit = self._work.visit = Visit(principal, self._request, background=ticket.background, is_prepaid=True)
        self._scope = scope_of(self._request, visit.principal)
        self._record.tier = visit.tier
        if self._asking is not None:
            visit.background = self._asking.background
        return visit

    def _terms(self, inference: InferenceRequest) -> Terms:
        asking = self._asking
        if self._ticket is not None:  # whoever the client asked keeps its reply and knows its key
            return Terms(key=None, resumable=False, body_hash="", after=None, sdk_retry=None)
        if asking is None:
            return terms_of(self._request, inference.fields)
        return terms_of(asking.original, asking.fields, kept=asking.stored)

    def _attach(self, terms: Terms) -> bool:
        """Stage *attach*: a message that was sent before gets the reply in progress, or the one that was given."""
        known = self._around.book.known(self._scope, terms)
        if known is None:
            return False
        if self._asking is None:
            check_position(known, terms.after)
        self._record.attached = True
        self._listener(known, after=terms.after or 0)
        return True

    def _open_reply(self, inference: InferenceRequest, terms: Terms, *, give_up: Callable[[], object]) -> Reply:
        """Stage *open*: from here on there is a reply that can be found and attached to."""
        settings = self._around.settings
        reply = self._work.reply = Reply(
            self.id,
            scope=self._scope,
            stream=inference.stream,
            resumable=terms.outlives_connections and (self._around.shared is not None or settings.workers == 1),
            keeps_text=terms.outlives_connections or terms.sdk_retry is not None,
            listener_timeout=settings.listener_timeout,
            created=int(self._around.now().timestamp()),
        )
        reply.model = inference.model
        if self._asking is not None:
            reply.response, reply.background = self._asking.echo, self._asking.background
        if reply.background and not reply.resumable:
            raise background_unavailable()
        reply.on_abandoned, reply.on_pause, reply.on_resume = give_up, self._attempts.pause, self._attempts.resume
        self._around.book.enter(reply, terms)
        return reply

    def _resolve(self, inference: InferenceRequest, held: ExitStack) -> Route:
        """Stage *resolve*: a pin, else the split; from here on the request counts for its version."""
        around, request = self._around, self._request
        table = around.router.table(inference.model)
        pin, conversation = request.header(b"x-version-pin"), inference.conversation or self.id
        if self._ticket is not None:
            pin = self._ticket.version
        route = around.router.route(table, pin=pin, conversation=conversation, now=around.now())
        route = self._record.route = around.desk.with_room(route, request)
        held.enter_context(around.metrics.of(route.key).one_in_flight(stream=inference.stream))
        return route

    async def _attach_elsewhere(self, reply: Reply, terms: Terms, route: Route) -> bool:
        """Stage *attach*, among all gateways: whoever enters a key first writes its reply, the others show it."""
        shared, book = self._around.shared, self._around.book
        reply.version, reply.key = route.version, route.key
        if shared is None or not reply.resumable:
            return False
        known = await shared.claim(reply, terms, self._describe(reply, route))
        if known is None:
            if reply.background and not reply.resumable:
                raise store_away()
            return False
        reply_id, _, body_hash = known.partition("|")
        if body_hash != terms.body_hash:
            raise other_body()
        self._record.attached = True
        there = await book.fetch(reply_id, self._scope)
        book.drop(reply)
        if there is None:
            raise expired(reply_id)
        there.version = route.version
        self._listener(there, after=terms.after or 0)
        for listener in list(reply.listeners):  # copies of this message that came here in the meantime
            there.attach(listener)
        return True

    def _describe(self, reply: Reply, route: Route) -> ReplyRecord:
        visit = self._work.visit
        assert visit is not None
        return ReplyRecord(
            reply_id=reply.id,
            scope=self._scope,
            path=self._request.path,
            headers=kept_headers(self._request),
            body=self._request.body,
            stream=reply.stream,
            background=reply.background,
            namespace=route.table.namespace,
            model=reply.model,
            version=route.version,
            created=reply.created,
            lane=visit.course.lane if visit.course is not None else "",
            user=visit.principal.user,
            tier=visit.tier,
            response=reply.response,
        )

    def _listen(self, reply: Reply, route: Route, held: ExitStack) -> None:
        """Stage *listen*: the client's connection follows the reply, and gets heartbeats while that is silent."""
        self._listener(reply, after=0)
        self._listening = True
        self._work.silence = SilenceWatch(reply, self._around.settings)
        held.callback(self._work.silence.stop)
        self._work.silence.watch(None)

    async def _await_turn(self, visit: Visit, route: Route, reply: Reply) -> None:
        """Stage *wait*: until the version can take the request, and it is this one's turn."""
        await self._around.router.fleet.await_ready(route.key, seconds=self._around.settings.replica_wait)

        def notify(estimate: Estimate) -> None:
            if reply.stream and self._ticket is None:
                reply.show([Emission(queued_event(self.id, route.table.spec.model, estimate))])

        def accept() -> None:
            if reply.background and not reply.log.count:
                reply.show([Emission(accepted_event(reply.id))])

        await self._around.desk.await_turn(visit, route, notify=notify, on_accepted=accept)
        if self._work.trace is not None:
            self._work.trace.note("turn")
        if reply.stream and self._ticket is None:
            model = route.table.spec.model
            reply.show([Emission(notice_event(self.id, model, notice)) for notice in visit.notices])

    def _refuse(self, error: GatewayError) -> None:
        self._record.note_failure(error.status, error.reason if isinstance(error, UpstreamError) else error.code)
        reply = self._work.reply
        if reply is None or not self._listening:
            if reply is not None:
                self._around.book.drop(reply)
            if self._responder is not None and not self._responder.started:
                self._responder.send_error(error, self._headers())
            return
        headers = [("content-type", "application/json"), *error.response_headers()]
        whole = WholeAnswer(error.status, error.to_json(), headers)
        reply.fail(stream_broken(error), code=error.code, answer=whole)

    def _listener(self, reply: Reply, *, after: int) -> None:
        assert self._responder is not None
        options: ListenerOptions = {
            "headers": lambda: [*self._headers(), *self._around.book.headers(reply)],
            "patient": not reply.log.keeps_text,
            "max_lag": self._around.settings.max_lag_bytes,
        }
        if self._asking is None:
            reply.attach(Listener(self._responder, after=after, **options))
        else:
            reply.attach(listener_for(self._asking, self._responder, reply, options))

    def _headers(self) -> list[tuple[str, str]]:
        headers = [("x-request-id", self.id)]
        return headers + self._work.visit.headers() if self._work.visit is not None else headers

    def _settle_visit(self, visit: Visit) -> None:
        """Quota and turn go back, by what the reply really cost."""
        reply, desk = self._observer if self._attempts.answer is not None else None, self._around.desk
        self._record.shed = visit.shed
        self._record.expected_prompt = visit.cost.prompt if visit.cost is not None else None
        self._record.expected_output = desk.expected_output(visit) if visit.shed else 0
        output = reply.output_tokens if reply is not None and (reply.output_tokens or reply.done) else None
        desk.settle(visit, prompt=reply.prompt_tokens if reply is not None else None, output=output)

    @property
    def _was_shown(self) -> bool:
        """Whether the client saw a success; the event that ends a cancelled reply is logged, and seen by nobody."""
        if self._work.reply is None or self._responder is None:
            return self._work.reply is not None and bool(self._work.reply.log.count)
        cancelled = self._work.reply.ending is not None and self._work.reply.ending.kind == "cancelled"
        return self._responder.started if cancelled else bool(self._work.reply.log.count)

    def _account(self) -> None:
        record, around = self._record, self._around
        if record.attached:
            self._end_trace(None)
            return
        record.status = record.status or (200 if self._was_shown else None)
        record.ended = self._loop.time()
        reply = self._observer if self._attempts.answer is not None else None
        self._end_trace(reply)
        settle(record, reply, metrics=around.metrics, access_log=around.settings.access_log)

    def _end_trace(self, reply: ReplyObserver | None) -> None:
        if self._work.trace is not None:
            self._work.trace.end(self._record, reply)
