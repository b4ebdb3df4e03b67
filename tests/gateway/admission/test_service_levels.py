"""Service levels under twice the load that the replicas take, in simulated time: the real gate, stated step times.

Steps take 20 ms and 0.1 ms for each running sequence; a reply is 64 tokens; 24 slots. What is offered does not care
what is answered (Poisson).
"""

import asyncio
import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field

from tidewheel.gateway.admission.eta import is_bearable
from tidewheel.gateway.admission.gate import Gate, Permit
from tidewheel.gateway.admission.lanes import Ticket
from tidewheel.gateway.admission.room import Room

SLOTS, TOKENS, COST = 24, 64, 500.0
LIMITS = {"paid": 20.0, "free": 1.5, "background": 600.0}
SHARES = {"paid": 0.25, "free": 0.6, "background": 0.15}


@dataclass
class Seen:
    """Of one lane."""

    offered: int = 0
    shed: int = 0
    first_tokens: list[float] = field(default_factory=list)
    inside_range: list[bool] = field(default_factory=list)


class Simulation:
    """Arrivals and ends on one clock; the engine's step depends on how many run."""

    def __init__(self, *, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.gate = Gate(lambda own: Room(slots=SLOTS, tokens=1e9), clock=lambda: self.now)
        self.seen: defaultdict[str, Seen] = defaultdict(Seen)
        self._events: list[tuple[float, int, object]] = []
        self._count = 0
        self._waiting = list[tuple[Ticket, asyncio.Future[Permit], float | None, float | None]]()

    def step(self) -> float:
        return 0.020 + 0.0001 * self.gate.state.slots

    @property
    def capacity(self) -> float:
        """Requests a second."""
        return SLOTS / (TOKENS * (0.020 + 0.0001 * SLOTS))

    def run(self, *, load: float, seconds: float) -> None:
        rate, due = load * self.capacity, 0.0
        while due < seconds:
            due += self.rng.expovariate(rate)
            self._at(due, None)
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            if isinstance(what, Permit):
                what.release()
            elif self.now < seconds:
                self._arrive()
            self._start_admitted()

    def _at(self, when: float, what: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def _arrive(self) -> None:
        lane = self.rng.choices(list(SHARES), weights=list(SHARES.values()))[0]
        ticket = Ticket(lane, f"u{self.rng.randrange(8)}", COST, self.now)
        seen = self.seen[lane]
        seen.offered += 1
        permit = self.gate.try_enter(ticket, 100)
        if permit is not None:
            self._start(ticket, permit)
            return
        quote = self.gate.estimate(ticket)
        if not is_bearable(quote, limit=LIMITS[lane], in_flight=self.gate.state.slots):
            seen.shed += 1
            return
        self._waiting.append((ticket, self.gate.join(ticket, 100), quote.low, quote.high))

    def _start_admitted(self) -> None:
        for entry in [entry for entry in self._waiting if entry[1].done()]:
            self._waiting.remove(entry)
            ticket, turn, low, high = entry
            self.gate.leave(ticket)
            permit = turn.result()
            if low is not None and high is not None and self.now > 30:
                self.seen[ticket.lane].inside_range.append(low <= permit.wait <= high)
            self._start(ticket, permit)

    def _start(self, ticket: Ticket, permit: Permit) -> None:
        first = self.now + self.step() * (1 + self.rng.random())
        self.seen[ticket.lane].first_tokens.append(first - ticket.since)
        self._at(first + (TOKENS - 1) * self.step(), permit)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


async def test_twice_the_load_is_borne_by_those_who_pay_least() -> None:
    world = Simulation(seed=11)
    world.run(load=2.0, seconds=180.0)
    paid, free, background = (world.seen[lane] for lane in SHARES)
    assert paid.shed == 0
    assert p95(paid.first_tokens) < 1.0
    assert p95(free.first_tokens) < 2.0, "of those that were admitted"
    assert free.shed > 0.2 * free.offered, "the rest is told at once"
    assert len(free.first_tokens) > 0.25 * free.offered
    assert len(background.first_tokens) >= 0.02 * 180 * world.capacity, "its guaranteed share"
    assert world.gate.state.slots == 0


async def test_at_half_the_load_nobody_waits_and_nobody_is_refused() -> None:
    world = Simulation(seed=12)
    world.run(load=0.5, seconds=120.0)
    for seen in world.seen.values():
        assert seen.shed == 0
        assert p95(seen.first_tokens) < 0.1


async def test_four_of_five_waits_end_in_the_range_that_was_told() -> None:
    world = Simulation(seed=13)
    world.run(load=2.0, seconds=300.0)
    told = world.seen["free"].inside_range
    assert len(told) > 200
    assert sum(told) / len(told) > 0.7


async def test_engines_never_hold_more_than_they_were_said_to_take() -> None:
    world, most = Simulation(seed=14), 0
    let_in = world.gate._let_in

    def counted(ticket: Ticket, tokens: int) -> Permit:
        nonlocal most
        permit = let_in(ticket, tokens)
        most = max(most, world.gate.state.slots)
        return permit

    world.gate._let_in = counted  # type: ignore[method-assign]
    world.run(load=3.0, seconds=60.0)
    assert most == SLOTS
