"""The door of one version: lets in as much work as its replicas take, keeps the rest in order, says how long.

A permit belongs to the request that holds it and is given back exactly once; each that comes back wakes who is next.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidewheel.gateway.admission.eta import Drain, Estimate, Flow, Queue, QuoteErrors, lane_rate
from tidewheel.gateway.admission.lanes import LANES, Lanes, Ticket
from tidewheel.gateway.admission.room import CEILINGS, Room


class Permit:
    """A place among the admitted. ``wait`` is how long it took to get, in seconds."""

    __slots__ = ("_began", "_gate", "_released", "cost", "tokens", "wait")

    def __init__(self, gate: "Gate", ticket: Ticket, *, tokens: int, now: float) -> None:
        self._gate = gate
        self._began = now
        self._released = False
        self.cost = ticket.cost
        self.tokens = tokens
        self.wait = now - ticket.since

    def release(self) -> None:
        """The request is over, however it ended."""
        if not self._released:
            self._released = True
            self._gate._return(self, held_seconds=self._gate.clock() - self._began)


@dataclass(eq=False, slots=True)
class _Waiter:
    ticket: Ticket
    tokens: int
    turn: asyncio.Future[Permit]
    quoted: float | None = None


@dataclass(slots=True)
class GateState:
    """What the gate has let in, and who waits."""

    slots: int = 0
    tokens: int = 0
    cost: float = 0.0
    lanes: Lanes = field(default_factory=Lanes)


class Gate:
    """``room`` says what the replicas take now; None lets everything in."""

    def __init__(self, room: Callable[[int], Room | None], *, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.state = GateState()
        self._room = room
        self._waiters: dict[Ticket, _Waiter] = {}
        self._drain = Drain()
        self._arrivals: Mapping[str, Flow] = {lane: Flow() for lane in LANES}
        self._errors: Mapping[str, QuoteErrors] = {lane: QuoteErrors() for lane in LANES}

    def try_enter(self, ticket: Ticket, tokens: int) -> Permit | None:
        """At once, if nobody waits who would go first and there is room."""
        self._arrivals[ticket.lane].note(ticket.cost, ticket.since)
        lanes = self.state.lanes
        if len(lanes[ticket.lane]) or any(len(higher) for higher in lanes.above(ticket.lane)):
            return None
        return self._let_in(ticket, tokens) if self._fits(ticket, tokens) else None

    def join(self, ticket: Ticket, tokens: int, *, front: bool = False) -> asyncio.Future[Permit]:
        """Wait in the lane; whoever waits must call ``leave`` when done waiting, whatever came of it."""
        turn: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        waiter = self._waiters[ticket] = _Waiter(ticket, tokens, turn)
        waiter.quoted = self.estimate(ticket).computed
        self.state.lanes[ticket.lane].push(ticket, front=front)
        self.wake()
        return turn

    def leave(self, ticket: Ticket) -> None:
        """Not waiting any more."""
        if self.state.lanes.remove(ticket):
            self.wake()  # whoever stood behind may fit where this one did not
        self._waiters.pop(ticket, None)

    def estimate(self, ticket: Ticket, queue: Queue | None = None) -> Estimate:
        """For one that waits, or is about to."""
        now = self.clock()
        lanes = self.state.lanes
        count, cost = (queue or Queue(lanes, ticket.lane)).ahead(ticket)
        drain = self._drain.rate(self.state.cost)
        if drain is None:
            return Estimate(count + 1, None)
        above = sum(self._arrivals[lane.name].rate(now) for lane in lanes.above(ticket.lane))
        errors = self._errors[ticket.lane]
        seconds = (cost + ticket.cost) / lane_rate(drain, ticket.lane, above)
        low, middle, high = (seconds * errors.factor(share) for share in (0.1, 0.5, 0.9))
        return Estimate(count + 1, middle, low, high, computed=seconds)

    def outlook(self, ticket: Ticket, tokens: int) -> float | None:
        """Seconds that one like this would wait; 0 where it would be let in, None where nothing is known."""
        lanes = self.state.lanes
        if ticket.lane in lanes.paused:
            return None
        waiting = len(lanes[ticket.lane]) or any(len(higher) for higher in lanes.above(ticket.lane))
        return 0.0 if not waiting and self._fits(ticket, tokens) else self.estimate(ticket).seconds

    def wake(self) -> None:
        """Let in who fits, in order; called whenever room may have appeared."""
        lanes = self.state.lanes
        while (ticket := lanes.peek(self._fits_waiter)) is not None:
            waiter = self._waiters[ticket]
            if waiter.turn.done():  # its owner was cancelled a moment ago and has not run yet
                lanes.remove(ticket)
                continue
            if not self._fits_waiter(ticket):
                return
            lanes.serve(ticket)
            permit = self._let_in(ticket, waiter.tokens)
            if waiter.quoted is not None:
                self._errors[ticket.lane].note(quoted=waiter.quoted, waited=permit.wait)
            waiter.turn.set_result(permit)

    def _fits_waiter(self, ticket: Ticket) -> bool:
        return self._fits(ticket, self._waiters[ticket].tokens)

    def _fits(self, ticket: Ticket, tokens: int) -> bool:
        room, state = self._room(self.state.slots), self.state
        if room is None:
            return True
        if state.slots == 0:
            return True  # the largest request must run some day: alone
        if room.full:
            return False
        share = 1.0 if state.lanes.is_owed(ticket) else CEILINGS[ticket.lane]
        # While a lower lane is owed a turn nobody waits at the engines, or there would never be a slot for it.
        slack = room.slack if ticket.lane == LANES[0] and not state.lanes.somebody_is_owed() else 0.0
        return state.slots + 1 <= math.ceil(room.slots * share + slack) and state.tokens + tokens <= room.tokens * share

    def _let_in(self, ticket: Ticket, tokens: int) -> Permit:
        state = self.state
        state.slots += 1
        state.tokens += tokens
        state.cost += ticket.cost
        return Permit(self, ticket, tokens=tokens, now=self.clock())

    def _return(self, permit: Permit, *, held_seconds: float) -> None:
        state = self.state
        state.slots -= 1
        state.tokens -= permit.tokens
        state.cost = state.cost - permit.cost if state.slots else 0.0
        self._drain.note(cost=permit.cost, seconds=held_seconds, now=self.clock())
        self.wake()
