"""The door of a version: no more inside than the replicas take, nobody lost, nothing left behind."""

import asyncio
import random
from collections.abc import Callable

import pytest

from tidewheel.gateway.admission.gate import Gate, Permit
from tidewheel.gateway.admission.lanes import Ticket
from tidewheel.gateway.admission.room import ReplicaRoom, Room, room_of


def gate_for(room: Callable[[int], Room | None]) -> Gate:
    return Gate(room, clock=asyncio.get_running_loop().time)


def ticket(lane: str = "free", user: str = "a", cost: float = 100.0) -> Ticket:
    return Ticket(lane, user, cost, asyncio.get_running_loop().time())


async def visit(gate: Gate, lane: str, user: str, hold: float, inside: list[int] | None = None) -> None:
    """As a request does."""
    mine = ticket(lane, user)
    permit = gate.try_enter(mine, 100)
    if permit is None:
        turn = gate.join(mine, 100)
        try:
            permit = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turn.result().release()
            raise
        finally:
            gate.leave(mine)
    try:
        if inside is not None:
            inside.append(gate.state.slots)
        await asyncio.sleep(hold)
    finally:
        permit.release()
        permit.release()


def emptied(gate: Gate) -> tuple[int, int, float, int]:
    return gate.state.slots, gate.state.tokens, gate.state.cost, len(gate.state.lanes)


async def test_no_more_inside_than_there_is_room() -> None:
    """litellm#18730, ai-gateway#680: 100 at once at 1x capacity."""
    gate, inside = gate_for(lambda own: Room(slots=8, tokens=10_000)), list[int]()
    await asyncio.gather(*[visit(gate, "paid", f"u{number % 7}", 0.002, inside) for number in range(100)])
    assert len(inside) == 100
    assert max(inside) == 8
    assert emptied(gate) == (0, 0, 0.0, 0)


async def test_memory_bounds_as_slots_do() -> None:
    gate, inside = gate_for(lambda own: Room(slots=100, tokens=350)), list[int]()
    await asyncio.gather(*[visit(gate, "paid", "u", 0.001, inside) for _ in range(20)])
    assert max(inside) == 3


async def test_full_memory_stops_admission_until_it_is_free_again() -> None:
    """Engines are never pushed into preemption: one more sequence would push another one out."""
    room = [Room(slots=100, tokens=1e6)]
    gate = gate_for(lambda own: room[0])
    first = gate.try_enter(ticket(), 100)
    assert first is not None
    room[0] = Room(slots=100, tokens=1e6, full=True)
    waiting = ticket()
    assert gate.try_enter(waiting, 100) is None
    turn = gate.join(waiting, 100)
    room[0] = Room(slots=100, tokens=1e6)
    gate.wake()
    assert (await turn).wait >= 0


async def test_the_largest_request_runs_alone_rather_than_never() -> None:
    gate = gate_for(lambda own: Room(slots=4, tokens=50, full=True))
    assert gate.try_enter(ticket(), 1000) is not None


async def test_without_reports_everything_passes() -> None:
    gate = gate_for(lambda own: None)
    assert all(isinstance(gate.try_enter(ticket(), 100), Permit) for _ in range(1000))


async def test_a_release_wakes_the_next_without_anybody_polling() -> None:
    gate = gate_for(lambda own: Room(slots=1, tokens=1e6))
    first = gate.try_enter(ticket("paid"), 1)
    assert first is not None
    low, high = ticket("free"), ticket("paid")
    turns = [gate.join(each, 1) for each in (low, high)]
    first.release()
    assert [turn.done() for turn in turns] == [False, True]


@pytest.mark.parametrize("moment", ["waiting", "just granted"])
async def test_one_that_is_cancelled_leaves_nothing_behind(moment: str) -> None:
    gate = gate_for(lambda own: Room(slots=1, tokens=1e6))
    first = gate.try_enter(ticket("paid"), 1)
    assert first is not None
    task = asyncio.ensure_future(visit(gate, "paid", "u", 0.0))
    await asyncio.sleep(0)
    if moment == "just granted":
        first.release()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    first.release()
    assert emptied(gate) == (0, 0, 0.0, 0)


async def test_chaos_ends_at_exactly_zero() -> None:
    """litellm#20256, #1477: cancelled at random moments while the room changes at random."""
    rng = random.Random(20261130)
    room = [Room(slots=5, tokens=400)]
    gate = gate_for(lambda own: room[0])
    tasks = list[asyncio.Task[None]]()
    for _ in range(600):
        lane, user = rng.choice(["paid", "free", "background"]), f"u{rng.randrange(20)}"
        task = asyncio.ensure_future(visit(gate, lane, user, rng.random() * 0.003))
        asyncio.get_running_loop().call_later(rng.random() * 0.2, task.cancel)
        tasks.append(task)
        if rng.random() < 0.3:
            room[0] = Room(slots=rng.randrange(9), tokens=rng.randrange(0, 900), full=rng.random() < 0.1)
            gate.wake()
            await asyncio.sleep(0.001)
        assert min(emptied(gate)) >= 0
    await asyncio.gather(*tasks, return_exceptions=True)
    assert emptied(gate) == (0, 0, 0.0, 0)


def replica(slots: int = 10, *, free: int = 9000, running: int | None = 0, waiting: int | None = 0) -> ReplicaRoom:
    return ReplicaRoom(slots, 10_000, free, running, waiting)


def test_room_is_what_replicas_report_and_a_little_more() -> None:
    assert room_of([None, None], own=0, slack=0.1, gateways=1) is None
    both = room_of([replica(), replica()], own=5, slack=0.1, gateways=1)
    assert both == Room(slots=20, tokens=19_000, slack=2.0)
    half_known = room_of([replica(), None], own=5, slack=0.1, gateways=1)
    assert half_known == both, "a replica that says nothing yet counts as the others"


def test_what_other_gateways_run_is_not_room_but_nobody_starves() -> None:
    crowded = room_of([replica(running=10, waiting=5)], own=0, slack=0.1, gateways=2)
    assert crowded is not None
    assert (crowded.slots, crowded.slack) == (5, 0.5)
    own = room_of([replica(running=10)], own=10, slack=0.1, gateways=2)
    assert own is not None
    assert (own.slots, own.slack) == (10, 1.0)


async def test_only_paid_requests_wait_at_the_engines_and_not_while_a_lower_lane_is_owed_a_turn() -> None:
    """Free requests let in beyond the slots waited in the engine's queue, up to the 10 s after which it ages."""
    gate = gate_for(lambda own: Room(slots=4, tokens=1e6, slack=2.0))
    inside = [gate.try_enter(ticket("free", f"u{number}"), 1) for number in range(6)]
    assert sum(permit is not None for permit in inside) == 4
    paid = [gate.try_enter(ticket("paid"), 1) for _ in range(4)]
    assert sum(permit is not None for permit in paid) == 2
    waiting, next_paid = ticket("free"), ticket("paid")
    turn, paid_turn = gate.join(waiting, 1), gate.join(next_paid, 1)
    gate.state.lanes["free"].credit = 100.0
    held = [permit for permit in (*inside, *paid) if permit is not None]
    for permit in held[:2]:
        permit.release()
    assert not turn.done()
    assert not paid_turn.done()
    held[2].release()
    assert turn.done(), "the first slot that is free is for the one that is owed it"
    assert paid_turn.done(), "and from then on paid requests may wait at the engines again"
    assert gate.state.slots == 5
    for permit in (*held[3:], turn.result(), paid_turn.result()):
        permit.release()
    gate.leave(waiting)
    gate.leave(next_paid)
    assert emptied(gate) == (0, 0, 0.0, 0)


def test_memory_nearly_full_everywhere_is_full() -> None:
    tight = room_of([replica(free=100), replica(free=200)], own=3, slack=0.1, gateways=1)
    assert tight is not None
    assert tight.full
    eased = room_of([replica(free=100), replica(free=2000)], own=3, slack=0.1, gateways=1)
    assert eased is not None
    assert not eased.full
    stale = room_of([replica(free=100, running=None, waiting=None)], own=3, slack=0.1, gateways=1)
    assert stale is not None
    assert not stale.full, "a report that is too old stops nothing"
