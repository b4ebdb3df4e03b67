"""The waiting requests: lanes by priority, tenants by fairness, nobody for ever.

Lanes go in order, the first one first, with two exceptions: a lane in which somebody waited `max_wait` seconds has
every second turn (ageing; not every turn, or a crowd in a low lane would come before all that is new), and a lane in
which requests wait is owed `floor_share` of the tokens that others get. Once it is owed as much as its next prompt, it
is served next. Inside a lane the tenant with the least virtual tokens goes first (VTC: prompt tokens on admission,
twice the output tokens as they come), so a tenant with many requests cannot push out one with few, however long they
have waited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from tidewheel.engine.request import Request

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
MAX_REMEMBERED_TENANTS = 4096


@dataclass(slots=True)
class Lane:
    name: str
    preempted: deque[Request] = field(default_factory=deque)
    by_tenant: dict[str, deque[Request]] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    owed: float = 0.0  # tokens of others' service that this lane has a claim to

    def __len__(self) -> int:
        return len(self.preempted) + sum(len(queue) for queue in self.by_tenant.values())

    @property
    def is_waiting(self) -> bool:
        return bool(self.preempted or self.by_tenant)

    def heads(self, passed_over: Collection[str]) -> Iterator[Request]:
        """The oldest request of each queue."""
        first = self._first_preempted(passed_over)
        if first is not None:
            yield first
        for tenant, queue in self.by_tenant.items():
            if tenant not in passed_over:
                yield queue[0]

    def next(self, passed_over: Collection[str]) -> Request | None:
        first = self._first_preempted(passed_over)
        if first is not None:
            return first
        tenants = [tenant for tenant in self.by_tenant if tenant not in passed_over] if passed_over else self.by_tenant
        return self.by_tenant[min(tenants, key=self.counters.__getitem__)][0] if tenants else None

    def _first_preempted(self, passed_over: Collection[str]) -> Request | None:
        return next((r for r in self.preempted if r.tenant not in passed_over), None)

    def forget_below(self, floor: float) -> None:
        """Bound the memory: an absent tenant at or below the floor would be lifted to it anyway."""
        if len(self.counters) > MAX_REMEMBERED_TENANTS:
            self.counters = {t: c for t, c in self.counters.items() if c > floor or t in self.by_tenant}


class WaitingLanes:
    """Requests that hold no blocks yet (or none any more), in the order they deserve to run."""

    def __init__(self, lanes: Sequence[str], *, max_wait: float, floor_share: float = 0.0) -> None:
        if not 0 <= floor_share * max(1, len(lanes) - 1) < 1:
            raise ValueError(
                f"a floor share of {floor_share} for each of {len(lanes)} lanes leaves nothing to the first"
            )
        self._lanes = {name: Lane(name) for name in lanes}
        self._rank = {name: rank for rank, name in enumerate(lanes)}
        self._max_wait = max_wait
        self._floor_share = floor_share
        self._num_waiting = 0
        self._picked_for_age: Request | None = None
        self._served_for_age = False  # the latest one to leave; then it is the others' turn

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Request]:
        for lane in self._lanes.values():
            yield from lane.preempted
            for queue in lane.by_tenant.values():
                yield from queue

    def depths(self) -> dict[str, int]:
        return {name: len(lane) for name, lane in self._lanes.items()}

    def rank(self, request: Request) -> int:
        """0 is the highest lane."""
        return self._rank[request.lane]

    def push(self, request: Request) -> None:
        lane = self._lanes[request.lane]
        queue = lane.by_tenant.get(request.tenant)
        if queue is None:
            # A tenant that was away may not spend the time it did not use: lift it to the least of those who queue.
            floor = min((lane.counters[tenant] for tenant in lane.by_tenant), default=0.0)
            lane.forget_below(floor)
            lane.counters[request.tenant] = max(lane.counters.get(request.tenant, 0.0), floor)
            queue = lane.by_tenant[request.tenant] = deque()
        queue.append(request)
        self._num_waiting += 1

    def push_front(self, request: Request) -> None:
        """Back to the front of its lane after a preemption; it was charged already and is not charged again."""
        self._lanes[request.lane].preempted.appendleft(request)
        self._num_waiting += 1

    def num_waiting_of(self, tenants: Collection[str]) -> int:
        if not tenants:
            return 0
        return sum(1 for request in self if request.tenant in tenants)

    def peek(self, now: float, passed_over: Collection[str] = ()) -> Request | None:
        """Who is served next, leaving out some tenants."""
        if not self._num_waiting:
            return None
        heads = [(lane, request) for lane in self._lanes.values() if (request := lane.next(passed_over)) is not None]
        self._picked_for_age = None if self._served_for_age else self._aged(heads, now, passed_over)
        if self._picked_for_age is not None:
            return self._picked_for_age
        owed = [(lane.owed, request) for lane, request in heads if lane.owed >= PROMPT_WEIGHT * request.num_prompt]
        if self._floor_share and owed:
            return max(owed, key=lambda pair: pair[0])[1]
        return heads[0][1] if heads else None

    def _aged(self, heads: Sequence[tuple[Lane, Request]], now: float, passed_over: Collection[str]) -> Request | None:
        """Who is next in the lane in which somebody waited longest, if that was too long."""
        oldest = [(min(r.arrived_at for r in lane.heads(passed_over)), request) for lane, request in heads]
        arrived_at, request = min(oldest, key=lambda pair: pair[0], default=(now, None))
        return request if now - arrived_at > self._max_wait else None

    def remove(self, request: Request) -> bool:
        """Take a request out, from the front on admission or from anywhere on abort."""
        self._served_for_age = request is self._picked_for_age
        lane = self._lanes[request.lane]
        queue = lane.by_tenant.get(request.tenant)
        for candidate in (lane.preempted, queue):
            if candidate and request in candidate:
                candidate.remove(request)
                self._num_waiting -= 1
                if queue is not None and not queue:
                    del lane.by_tenant[request.tenant]
                return True
        return False

    def charge_prompt(self, request: Request) -> None:
        self._charge(request, PROMPT_WEIGHT * request.num_prompt)

    def charge_output(self, request: Request) -> None:
        self._charge(request, OUTPUT_WEIGHT)

    def _charge(self, request: Request, amount: float) -> None:
        own = self._lanes[request.lane]
        own.counters[request.tenant] = own.counters.get(request.tenant, 0.0) + amount
        own.owed = max(0.0, own.owed - amount)
        if self._floor_share and self._num_waiting:
            for lane in self._lanes.values():
                if lane is not own:
                    # A claim is no savings account: a lane in which nobody waits has none.
                    lane.owed = lane.owed + self._floor_share * amount if lane.is_waiting else 0.0
