"""The order of those who wait: lanes by rank with a guaranteed share, users inside a lane by deficit round robin.

Deficit round robin (Shreedhar and Varghese, 1995) by tokens: each visit gives a user one quantum, the mean cost of what
waits; a user whose first request fits into what it has saved is served. A user with nothing waiting saves nothing.
A lower lane earns credit from each token that higher lanes are served while it waits, and goes first once its first
request is paid for: paid work can slow background work down to its share, and never stop it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

LANES: Final = ("paid", "free", "background")
FLOORS: Final = {"paid": 0.0, "free": 0.1, "background": 0.03}


@dataclass(eq=False, slots=True)
class Ticket:
    """One request that waits. ``cost`` in tokens: its prompt and the longest reply it may get."""

    lane: str
    user: str
    cost: float
    since: float


@dataclass(slots=True)
class _Flow:
    """One user's queue."""

    user: str
    tickets: deque[Ticket] = field(default_factory=deque)
    deficit: float = 0.0
    cost: float = 0.0


class Lane:
    """One queue, fair between users."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.credit = 0.0
        self.cost = 0.0
        self._flows: dict[str, _Flow] = {}
        self._ring: deque[_Flow] = deque()
        self._front: deque[Ticket] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Ticket]:
        yield from self._front
        for flow in self._ring:
            yield from flow.tickets

    @property
    def quantum(self) -> float:
        """Mean cost of what waits."""
        return max(1.0, self.cost / self._count) if self._count else 1.0

    def push(self, ticket: Ticket, *, front: bool = False) -> None:
        """Behind the user's own; ``front`` is for a reply that goes on elsewhere and has waited its turn already."""
        self._count += 1
        self.cost += ticket.cost
        if front:
            self._front.append(ticket)
            return
        flow = self._flows.get(ticket.user)
        if flow is None:
            flow = self._flows[ticket.user] = _Flow(ticket.user)
            self._ring.append(flow)
        flow.tickets.append(ticket)
        flow.cost += ticket.cost

    def peek(self) -> Ticket | None:
        """Who is next. Visits go on until somebody's savings suffice; looking twice changes nothing."""
        if self._front:
            return self._front[0]
        if not self._ring:
            return None
        self._skip_rounds()
        while True:
            flow = self._ring[0]
            if flow.tickets[0].cost <= flow.deficit:
                return flow.tickets[0]
            self._ring.rotate(-1)
            self._ring[0].deficit += self.quantum

    def _skip_rounds(self) -> None:
        """Rounds in which nobody could be served are given at once."""
        first = self._ring[0]
        if first.tickets[0].cost <= first.deficit:
            return
        quantum = self.quantum
        rounds = min((flow.tickets[0].cost - flow.deficit) / quantum for flow in self._ring) - 1
        if rounds >= 1:
            for flow in self._ring:
                flow.deficit += int(rounds) * quantum

    def remove(self, ticket: Ticket) -> bool:
        """Take it out, served or given up; False when it is not here."""
        if ticket in self._front:
            self._front.remove(ticket)
        else:
            flow = self._flows.get(ticket.user)
            if flow is None or ticket not in flow.tickets:
                return False
            flow.tickets.remove(ticket)
            flow.cost -= ticket.cost
            if not flow.tickets:
                del self._flows[ticket.user]
                self._ring.remove(flow)
        self._count -= 1
        self.cost = self.cost - ticket.cost if self._count else 0.0
        return True

    def serve(self, ticket: Ticket) -> None:
        """Take out who was next, and charge its user."""
        flow = self._flows.get(ticket.user)
        if flow is not None and ticket not in self._front:
            flow.deficit -= ticket.cost
        self.remove(ticket)

    def costs(self) -> list[float]:
        """What waits, by user."""
        return [flow.cost for flow in self._ring]

    def own_ahead(self, ticket: Ticket) -> tuple[int, float]:
        """Requests and tokens of the same user that come before."""
        count, cost = 0, 0.0
        for other in self._flows[ticket.user].tickets if ticket.user in self._flows else ():
            if other is ticket:
                break
            count, cost = count + 1, cost + other.cost
        return count, cost

    def of_user(self, user: str) -> tuple[int, float]:
        """Requests and tokens of one user that wait here."""
        flow = self._flows.get(user)
        return (len(flow.tickets), flow.cost) if flow is not None else (0, 0.0)

    def counts(self) -> list[int]:
        """How many wait, by user."""
        return [len(flow.tickets) for flow in self._ring]


class Lanes:
    """All lanes of one version."""

    def __init__(self, floors: Mapping[str, float] = FLOORS) -> None:
        self._floors = floors
        self._lanes = {name: Lane(name) for name in LANES}
        self.paused: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __getitem__(self, name: str) -> Lane:
        return self._lanes[name]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def above(self, name: str) -> list[Lane]:
        """The lanes served before this one."""
        return [self._lanes[other] for other in LANES[: LANES.index(name)]]

    def peek(self, fits: Callable[[Ticket], bool] = lambda ticket: True) -> Ticket | None:
        """Who is next over all lanes. One that goes first by its lane's credit does so only if there is room."""
        waiting = [lane for lane in self._lanes.values() if len(lane) and lane.name not in self.paused]
        heads = [(lane, head) for lane in waiting if (head := lane.peek()) is not None]
        for lane, head in heads[1:]:
            if lane.credit >= head.cost and fits(head):
                return head
        return heads[0][1] if heads else None

    def is_owed(self, ticket: Ticket) -> bool:
        """Whether its lane has earned this turn."""
        return self._lanes[ticket.lane].credit >= ticket.cost

    def somebody_is_owed(self) -> bool:
        """Whether any lane has earned a turn that it has not had yet."""
        return any(
            lane.credit > 0
            and lane.name not in self.paused
            and (head := lane.peek()) is not None
            and self.is_owed(head)
            for lane in self._lanes.values()
        )

    def serve(self, ticket: Ticket) -> None:
        """Take out who was next; lanes that had to stand back for it earn credit."""
        lane = self._lanes[ticket.lane]
        lane.credit = max(0.0, lane.credit - ticket.cost)
        lane.serve(ticket)
        for other in self._lanes.values():
            if other is lane:
                continue
            head = other.peek()
            if head is None:
                other.credit = 0.0
                continue
            earned = other.credit + self._floors[other.name] * ticket.cost
            other.credit = min(earned, max(head.cost, 2 * other.quantum))

    def remove(self, ticket: Ticket) -> bool:
        """Somebody gave up."""
        return self._lanes[ticket.lane].remove(ticket)
