"""How a reply comes about: from replicas here or a peer region, and carried on elsewhere when one of them is lost."""

import asyncio
import logging
from typing import Final

import orjson

from tidewheel.gateway.admission.desk import Visit
from tidewheel.gateway.attempts import Asked, Attempts
from tidewheel.gateway.errors import UpstreamError
from tidewheel.gateway.inference import InferenceRequest, engine_body
from tidewheel.gateway.peers.region import Peer
from tidewheel.gateway.peers.tickets import body_hash
from tidewheel.gateway.placement.spill import choose_place, cold_seconds
from tidewheel.gateway.replies.continuation import COMPLETIONS_PATH, RUNTIMES, Refusal, plan_continuation
from tidewheel.gateway.replies.continued import Rewriter
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.replies.tokenlog import Emission
from tidewheel.gateway.responses.listeners import accepted_event
from tidewheel.gateway.routing import Route
from tidewheel.gateway.snapshot import ModelKey
from tidewheel.gateway.verdicts import (
    LostError,
)
from tidewheel.gateway.work import Work

_log = logging.getLogger(__name__)

_PASSING: Final = frozenset({"unreachable", "upstream_overloaded", "upstream_reset"})


class Generation:
    """Of one request. ``is_spilled`` says that a peer sent it, so that it stays here."""

    def __init__(self, work: Work, attempts: Attempts, *, is_spilled: bool) -> None:
        self._work = work
        self._attempts = attempts
        self._is_spilled = is_spilled

    async def spill(self, visit: Visit, route: Route, inference: InferenceRequest, reply: Reply) -> bool:
        """Stage *spill*: what would wait long here is served by another region, if one has room; False to stay."""
        regions, around = self._work.around.regions, self._work.around
        if regions is None or self._is_spilled or visit.course is None:
            return False
        model = str(ModelKey(*route.table.key))
        here = around.desk.outlook(visit, route)
        offers = regions.offers(model, route.version, visit.course.lane, now=self._work.loop.time()) if here else []
        if not offers:
            return False
        self._attempts.inference, settings = inference, around.settings
        replicas = around.router.fleet.replicas(route.key)
        cold = cold_seconds(
            prompt_tokens=visit.cost.prompt if visit.cost is not None else 0,
            warm_share=around.placement.warm_share(replicas, self._attempts.read_prefix(route, inference)),
            prefill_rate=settings.spill_prefill_rate,
        )
        place = choose_place(here, offers, penalty=settings.spill_penalty, cold=cold)
        if place.region is None:
            return False
        if reply.background:
            reply.show([Emission(accepted_event(reply.id))])
        _log.info("goes to a peer: %s", place.reason, extra={"request_id": self._work.id, "region": place.region})
        return await self._generate_there(regions.peer(place.region), model, visit, route, reply)

    async def generate(
        self, route: Route, inference: InferenceRequest, reply: Reply, *, begun: bool = False, cause: str = "gateway"
    ) -> None:
        """Stage *generate*: pick a replica, send, relay. Until the client has seen something another replica may start
        afresh; after that it can only carry on."""
        self._attempts.inference = inference
        body = engine_body(
            self._work.request,
            inference,
            served_name=route.table.spec.model,
            wants_ids=_tells_ids(route) and reply.stream,
        )
        asked, lost = Asked(self._work.request.path, body), frozenset[str]()
        if begun:
            following = self._plan(route, inference, reply, cause=cause, message="The reply was cut short.")
            if following is None:
                return
            asked = following
        continued = int(begun)
        while continued <= self._work.around.settings.max_continuations:
            try:
                if not continued:
                    await self._attempts.try_replicas(route, asked, tried=lost)
                else:
                    await self._try_again_and_again(route, asked, reply, lost=lost)
                return
            except LostError as failure:
                continued += 1
                lost |= self._lose(failure)
                following = self._plan(route, inference, reply, cause="replica", message=failure.error.message)
                if following is None:
                    return
                asked = following
        raise UpstreamError(
            "The reply was cut short: its replicas failed again and again. What was sent so far is valid.",
            reason="stream_broken",
        )

    async def _try_again_and_again(self, route: Route, asked: Asked, reply: Reply, *, lost: frozenset[str]) -> None:
        """A continuation has a client that waits: full or unreachable replicas are asked again for a while."""
        settings, fleet = self._work.around.settings, self._work.around.router.fleet
        deadline = self._work.loop.time() + settings.continuation_wait
        while True:
            left = max(0.0, deadline - self._work.loop.time())
            await fleet.await_ready(route.key, seconds=left, besides=lost)
            try:
                async with self._work.around.pacer.turn(reply):
                    await self._attempts.try_replicas(route, asked, tried=lost)
                return
            except UpstreamError as error:
                if error.reason not in _PASSING or self._work.loop.time() + settings.suspension_seconds > deadline:
                    raise
            await asyncio.sleep(settings.suspension_seconds)

    def _lose(self, failure: LostError) -> frozenset[str]:
        uid = self._work.record.lost_on
        fields = {"request_id": self._work.id, "replica": uid, "reason": failure.error.reason}
        _log.warning("a stream was lost", extra=fields)
        return frozenset({uid} if uid is not None else ())

    def _plan(
        self, route: Route, inference: InferenceRequest, reply: Reply, *, cause: str, message: str
    ) -> Asked | None:
        """The request that carries on; None when nothing but the end was missing. Raises UpstreamError."""
        target = route.table.targets.get(route.version)
        runtime = RUNTIMES[target.runtime.value if target is not None else "custom"]
        plan = plan_continuation(
            inference.fields,
            reply.log,
            path=self._work.request.path,
            model=route.table.spec.model,
            max_model_len=target.max_model_len if target is not None else 0,
            runtime=runtime,
        )
        series = self._work.around.metrics.of(route.key)
        if isinstance(plan, Refusal):
            series.lost.inc()
            raise UpstreamError(
                f"{message} It cannot be continued elsewhere, because {plan.reason}.", reason="stream_broken"
            )
        series.resumed[cause].inc()
        log = reply.log
        rewriter = Rewriter(
            log.opening or {},
            form=plan.form,
            prompt_tokens=len(log.prompt_ids or ()),
            shown_tokens=plan.kept_tokens,
            asks_usage=_asks_usage(inference),
        )
        if plan.fields is None:
            reply.show([Emission(event) for event in rewriter.closing()])
            reply.finish()
            return None
        del log.token_ids[plan.kept_tokens :]
        self._work.observer.shown_tokens = plan.kept_tokens
        return Asked(COMPLETIONS_PATH, orjson.dumps(plan.fields), rewriter)

    async def _generate_there(self, peer: Peer, model: str, visit: Visit, route: Route, reply: Reply) -> bool:
        """Relay the peer's answer as if it were a replica; one that is lost in mid-reply is carried on here."""
        inference, regions = self._attempts.inference, self._work.around.regions
        assert inference is not None
        assert regions is not None
        body = engine_body(
            self._work.request, inference, served_name=model, wants_ids=_tells_ids(route) and reply.stream
        )
        ticket = regions.ticket(
            request_id=self._work.id,
            user=visit.principal.user,
            tier=visit.tier,
            background=visit.background,
            version=route.version,
            body=body_hash(body),
        )
        try:
            return await self._attempts.attempt_there(
                peer, Asked(self._work.request.path, body), regions.header(ticket)
            )
        except LostError as failure:
            self._work.record.lost_on = None
            self._lose(failure)
            await self._work.around.desk.await_turn(visit, route, notify=None, front=True)
            await self.generate(route, inference, reply, begun=True, cause="replica")
            return True


def _tells_ids(route: Route) -> bool:
    target = route.table.targets.get(route.version)
    return target is not None and RUNTIMES[target.runtime.value].returns_token_ids


def _asks_usage(inference: InferenceRequest) -> bool:
    options = inference.fields.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))
