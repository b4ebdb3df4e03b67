"""The desk that every request passes: who asks, how it is treated, its quota, its turn."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidewheel.gateway.admission.eta import Estimate, Queue, is_bearable
from tidewheel.gateway.admission.gate import Gate, Permit
from tidewheel.gateway.admission.keyfile import Identify
from tidewheel.gateway.admission.keys import Principal
from tidewheel.gateway.admission.ladder import (
    QUEUE,
    SHED_FREE,
    Course,
    Notice,
    fallback_notice,
    own_lane,
    steer,
    wait_for,
)
from tidewheel.gateway.admission.lanes import LANES, Ticket
from tidewheel.gateway.admission.limits import limits_of, quota_headers, refuse_shortage, require_possible
from tidewheel.gateway.admission.quota import Quota, QuotaAwayError, Reservation, Shortage
from tidewheel.gateway.admission.room import ReplicaRoom, Room, room_of
from tidewheel.gateway.admission.tokens import Cost, Learnt, asked_choices, asked_output, cost_of
from tidewheel.gateway.errors import GatewayError
from tidewheel.gateway.inference import InferenceRequest
from tidewheel.gateway.metrics import Metrics
from tidewheel.gateway.placement.pools import version_with_room
from tidewheel.gateway.replicas import Replica
from tidewheel.gateway.requests import Request
from tidewheel.gateway.routing import Route, Router
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import Snapshot, VersionKey

_ROOM_SECONDS: Final = 0.05
_SHED_MEMORY_SECONDS: Final = 10.0


@dataclass(slots=True)
class Visit:
    """What one request has taken and been told here; ``settle`` gives back what it holds, once."""

    principal: Principal
    request: Request
    course: Course | None = None
    cost: Cost | None = None
    key: VersionKey | None = None
    reservation: Reservation | None = None
    permit: Permit | None = None
    estimate: Estimate | None = None
    queued_seconds: float = 0.0
    shed: bool = False
    background: bool = False
    is_prepaid: bool = False  # another region's gateway has reserved its quota, and settles it
    notices: list[Notice] = field(default_factory=list)

    @property
    def tier(self) -> str:
        """Label of metrics."""
        return self.principal.tier

    def headers(self) -> list[tuple[str, str]]:
        """What goes with the answer."""
        headers = quota_headers(self.reservation.standings()) if self.reservation is not None else []
        if self.notices:
            headers.append(("x-tidewheel-notice", ", ".join(notice.kind for notice in self.notices)))
        if self.queued_seconds:
            headers.append(("x-tidewheel-queued-ms", str(round(self.queued_seconds * 1000))))
        if self.estimate is not None and self.permit is None:
            headers.append(("x-tidewheel-queue-position", str(self.estimate.position)))
            if self.estimate.seconds is not None:
                headers.append(("x-tidewheel-eta-ms", str(round(self.estimate.seconds * 1000))))
        return headers

    def engine_headers(self) -> list[bytes]:
        """What engines are told of who asks; only what this gateway says itself."""
        if self.course is None:
            return []
        lines = [b"x-tidewheel-lane: " + self.course.lane.encode()]
        if self.principal.tenant:
            lines.append(b"x-tidewheel-tenant: " + self.principal.tenant.encode())
        return lines


class Desk:
    """One per process."""

    def __init__(
        self,
        settings: Settings,
        *,
        identify: Identify,
        quota: Quota,
        router: Router,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._identify = identify
        self._quota = quota
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._gates: dict[VersionKey, Gate] = {}
        self._rooms: dict[VersionKey, tuple[float, Room | None]] = {}
        self._learnt: dict[VersionKey, Learnt] = {}
        self._shed_at: dict[VersionKey, float] = {}
        self._queues: dict[tuple[int, str], tuple[float, Queue]] = {}
        self._wait_limits = {
            "paid": settings.paid_wait_limit,
            "free": settings.free_wait_limit,
            "background": settings.background_wait_limit,
        }

    def follow(self, snapshot: Snapshot) -> None:
        """Routing changed: forget versions that are gone, pause what the rung pauses, look for new room."""
        known = snapshot.versions()
        for kept in (self._gates, self._learnt, self._rooms, self._shed_at):
            for key in [key for key in kept if key not in known]:
                gate = self._gates.get(key)
                if gate is None or not (gate.state.slots or len(gate.state.lanes)):
                    kept.pop(key, None)
        for key, gate in self._gates.items():
            table = snapshot.tables.get(key.model_key)
            paused = table is not None and table.spec.rung >= 1
            gate.state.lanes.paused = frozenset({"background"}) if paused else frozenset()
        self.look()

    def look(self) -> None:
        """Room may have appeared."""
        self._rooms.clear()
        for gate in self._gates.values():
            if len(gate.state.lanes):
                gate.wake()

    # The stages of a request.

    def identify(self, request: Request) -> Visit:
        """Who asks. Raises GatewayError 401 or 403."""
        return Visit(self._identify(request.headers.get(b"authorization")), request)

    def steer(self, visit: Visit, inference: InferenceRequest) -> InferenceRequest:
        """What the ladder makes of it: perhaps another model. Raises GatewayError."""
        visit.principal.require_model(inference.model)
        table = self._router.table(inference.model)
        rung = table.spec.rung
        course = visit.course = steer(
            table.spec.tiers,
            visit.tier,
            rung=rung,
            pause_seconds=self._settings.pause_retry_seconds,
            background=visit.background,
            wait=wait_for(table.spec.relief if rung else None, time.time()),
        )
        visit.notices += course.notices
        if course.fallback_model is None or course.fallback_model == table.spec.model:
            return inference
        name = f"{table.namespace}/{course.fallback_model}"
        if not self._router.serves(name):
            return inference
        visit.notices.append(fallback_notice(course, asked=table.spec.model))
        return inference.with_model(name)

    def with_room(self, route: Route, request: Request) -> Route:
        """A prompt too long for the version goes to one of the same table that declares room; a pin stays."""
        learnt = self._learnt.get(route.key) or Learnt()
        need = learnt.prompt_tokens(len(request.body))
        if route.pinned:
            return route
        is_ready = self._router.fleet.has_ready
        namespace, model = route.table.key
        version = version_with_room(
            route.table,
            route.version,
            need=need,
            is_ready=lambda version: is_ready(VersionKey(namespace, model, version)),
        )
        return route if version == route.version else replace(route, version=version)

    async def reserve(self, visit: Visit, inference: InferenceRequest, route: Route) -> InferenceRequest:
        """Quota before any work. Raises GatewayError 400 for what can never fit, 429 for what does not fit now."""
        course = visit.course
        assert course is not None
        target = route.table.targets.get(route.version)
        asked = asked_output(inference.fields)
        cost = visit.cost = cost_of(
            self._learnt.setdefault(route.key, Learnt()),
            body_bytes=len(visit.request.body),
            asked=asked,
            most_output=course.most_output,
            choices=asked_choices(inference.fields),
            max_model_len=target.max_model_len if target is not None else 1 << 20,
        )
        visit.key = route.key
        limits = limits_of(course, principal=visit.principal, model=route.table.key, cost=cost)
        if limits and not visit.is_prepaid:
            require_possible(limits, cost)
            try:
                answer = await self._quota.reserve(limits)
            except QuotaAwayError:
                if course.lane != "paid":
                    message = "Usage cannot be accounted for at the moment; try again shortly."
                    raise GatewayError(503, message, code="quota_unavailable", retry_after=5.0) from None
            else:
                if isinstance(answer, Shortage):
                    visit.shed = True
                    raise refuse_shortage(answer, course)
                visit.reservation = answer
        if course.most_output is not None and (asked is None or asked > course.most_output):
            return inference.with_output_limit(course.most_output)
        return inference

    async def await_turn(
        self,
        visit: Visit,
        route: Route,
        *,
        notify: Callable[[Estimate], object] | None,
        on_accepted: Callable[[], object] = lambda: None,
        front: bool = False,
    ) -> None:
        """Wait in the lane until the replicas have room; ``notify`` hears of position and ETA while it lasts, and
        ``on_accepted`` once, when the lane has taken the request.

        Raises GatewayError 429 when the lane is full or the wait would be longer than it may be.
        """
        course, cost = visit.course, visit.cost
        assert course is not None
        assert cost is not None
        gate, series = self._gate(route.key), self._metrics.of(route.key)
        ticket = Ticket(course.lane, visit.principal.user, float(cost.reserved), self._clock())
        visit.permit = gate.try_enter(ticket, cost.expected)
        if visit.permit is None:
            self._require_bearable(visit, gate, ticket, course=course)
        on_accepted()
        if visit.permit is None:
            depth = series.queue_depth[course.lane]
            depth.inc()
            try:
                visit.permit = await self._wait(visit, gate, ticket, cost=cost, notify=notify, front=front)
            finally:
                depth.dec()
                visit.queued_seconds = self._clock() - ticket.since
        series.queue_wait[course.lane].observe(visit.permit.wait)

    def outlook(self, visit: Visit, route: Route) -> float | None:
        """Seconds that this request would wait in its lane; None where nothing is known."""
        course, cost = visit.course, visit.cost
        assert course is not None
        assert cost is not None
        ticket = Ticket(course.lane, visit.principal.user, float(cost.reserved), self._clock())
        return self._gate(route.key).outlook(ticket, cost.expected)

    def outlooks(self) -> list[tuple[VersionKey, dict[str, float]]]:
        """What a mean request would wait, by version with a ready replica and lane; for peers."""
        now, told = self._clock(), list[tuple[VersionKey, dict[str, float]]]()
        for key in (self._router.snapshot or Snapshot()).versions():
            if not self._router.fleet.has_ready(key):
                continue
            gate, mean = self._gate(key), round((self._learnt.get(key) or Learnt()).output * 2)
            waits = {lane: gate.outlook(Ticket(lane, "", float(mean), now), mean) for lane in LANES}
            told.append((key, {lane: wait for lane, wait in waits.items() if wait is not None}))
        return told

    def settle(self, visit: Visit, *, prompt: int | None, output: int | None, cached: int = 0) -> None:
        """The request is over. ``output`` is None where not a token came of it: then it cost nothing."""
        if visit.permit is not None:
            visit.permit.release()
        if visit.cost is not None and visit.key is not None and output is not None:
            learnt = self._learnt.get(visit.key)
            if learnt is not None:
                learnt.learn(body_bytes=len(visit.request.body), prompt_tokens=prompt, output_tokens=output)
        if visit.reservation is not None:
            known = visit.cost.prompt if prompt is None and visit.cost is not None else prompt or 0
            visit.reservation.settle(None if output is None else float(known + output))

    def expected_output(self, visit: Visit) -> int:
        """Tokens of the reply that a refused request would likely have had; demand counts it."""
        return visit.cost.expected - visit.cost.prompt if visit.cost is not None else 0

    def rung(self, key: VersionKey) -> int:
        """Rung in force here: the table's, or the one that this gateway climbed to by itself."""
        snapshot = self._router.snapshot or Snapshot()
        table = snapshot.tables.get(key.model_key)
        rung = table.spec.rung if table is not None else 0
        gate = self._gates.get(key)
        if self._clock() - self._shed_at.get(key, -_SHED_MEMORY_SECONDS) < _SHED_MEMORY_SECONDS:
            return SHED_FREE
        return max(rung, QUEUE) if gate is not None and len(gate.state.lanes) else rung

    def gates(self) -> Mapping[VersionKey, Gate]:
        """For those who look from outside: metrics, peers, tests."""
        return self._gates

    # The inside.

    def _wait_limit(self, course: Course) -> float:
        """A tier's own limit is for its own lane."""
        own = course.limits.max_wait_seconds if own_lane(course.limits, course.tier) == course.lane else None
        return float(own or self._wait_limits[course.lane])

    def _require_bearable(self, visit: Visit, gate: Gate, ticket: Ticket, *, course: Course) -> None:
        lane = gate.state.lanes[ticket.lane]
        estimate = visit.estimate = gate.estimate(ticket)
        limit = self._wait_limit(course)
        in_flight = gate.state.slots
        if len(lane) >= self._settings.lane_depth or not is_bearable(estimate, limit=limit, in_flight=in_flight):
            visit.shed = True
            self._shed_at[visit.key or VersionKey("", "", "")] = self._clock()
            raise _overloaded(estimate, course, fallback_seconds=limit)

    async def _wait(
        self,
        visit: Visit,
        gate: Gate,
        ticket: Ticket,
        *,
        cost: Cost,
        notify: Callable[[Estimate], object] | None,
        front: bool,
    ) -> Permit:
        turn = gate.join(ticket, cost.expected, front=front)
        course = visit.course
        assert course is not None
        limit = self._wait_limit(course)
        pause = self._settings.queue_notice_seconds
        try:
            while True:
                left = ticket.since + 2 * limit - self._clock()
                done, _ = await asyncio.wait({turn}, timeout=min(pause, max(0.0, left)))
                if done:
                    return turn.result()
                if left <= pause:
                    visit.shed = True
                    raise _overloaded(gate.estimate(ticket), course, fallback_seconds=limit)
                visit.estimate = gate.estimate(ticket, self._queue(gate, ticket.lane))
                if notify is not None:
                    notify(visit.estimate)
                pause = self._settings.queue_update_seconds
        except BaseException:
            if turn.done() and not turn.cancelled():
                turn.result().release()  # the turn came in the same moment as the end
            turn.cancel()
            raise
        finally:
            gate.leave(ticket)

    def _queue(self, gate: Gate, lane: str) -> Queue:
        """Laid out at most a few times a second: every waiter asks."""
        now, key = self._clock(), (id(gate), lane)
        at, queue = self._queues.get(key, (-1.0, None))
        if queue is None or now - at > 0.25:
            queue = Queue(gate.state.lanes, lane)
            self._queues = {each: kept for each, kept in self._queues.items() if now - kept[0] < 1.0}
            self._queues[key] = (now, queue)
        return queue

    def _gate(self, key: VersionKey) -> Gate:
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(lambda own: self._room(key, own), clock=self._clock)
            snapshot = self._router.snapshot
            table = snapshot.tables.get(key.model_key) if snapshot is not None else None
            if table is not None and table.spec.rung >= 1:
                gate.state.lanes.paused = frozenset({"background"})
        return gate

    def _room(self, key: VersionKey, own: int) -> Room | None:
        now = self._clock()
        at, room = self._rooms.get(key, (-1.0, None))
        if now - at >= _ROOM_SECONDS or at < 0:
            settings = self._settings
            replicas = [self._describe(replica, now) for replica in self._router.fleet.replicas(key) if replica.ready]
            room = room_of(replicas, own=own, slack=settings.admission_slack, gateways=settings.gateways)
            self._rooms[key] = (now, room)
        return room

    def _describe(self, replica: Replica, now: float) -> ReplicaRoom | None:
        report = replica.report
        if report is None:
            return None
        if now - replica.reported_at > self._settings.load_stale_seconds:
            return ReplicaRoom(report.slots, report.kv_tokens, None, None, None)
        return ReplicaRoom(report.slots, report.kv_tokens, report.free_tokens, report.running, report.waiting)


def _overloaded(estimate: Estimate, course: Course, *, fallback_seconds: float) -> GatewayError:
    """429 with the truth about when."""
    seconds = max(1.0, estimate.seconds if estimate.seconds is not None else fallback_seconds)
    text = f"Capacity is short: a request like this would wait about {seconds:.0f} seconds. Try again then."
    message = f"{text} {course.limits.message}".strip()
    eta = None if estimate.seconds is None else round(estimate.seconds * 1000)
    extra = {"queue_position": estimate.position, "eta_ms": eta}
    headers = (("x-should-retry", "false"),) if seconds > 120 else ()
    return GatewayError(429, message, code="lane_full", retry_after=seconds, headers=headers, extra=extra)
