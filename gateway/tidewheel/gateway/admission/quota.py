"""Token quotas: reserved before the work, settled once after it, all counters or none.

Where several gateways share a limit, each takes leases from a shared store: small amounts in advance, so that most
requests ask nobody. A lease has been taken out of the shared bucket, which refills meanwhile: together the gateways
admit at most one capacity, what flows in, and gateways x lease on top.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidewheel.gateway.admission.bucket import Bucket

CounterKey = tuple[str, ...]

_FORGET_ABOVE: Final = 50_000


class QuotaAwayError(Exception):
    """The shared store does not answer."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One counter: its name, how much it holds and gains. ``unit`` is tokens or requests."""

    key: CounterKey
    unit: str
    capacity: float
    per_second: float


@dataclass(frozen=True, slots=True)
class Want:
    """What is asked of a counter: at least ``least`` or nothing at all, up to ``most``."""

    limit: Limit
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Taken:
    """What a counter gave, and its shared level after that."""

    amount: float
    level: float


@dataclass(frozen=True, slots=True)
class Shortage:
    """Nothing was taken: this counter has too little, and will have enough after ``wait`` seconds."""

    limit: Limit
    level: float
    wait: float


class QuotaStore(Protocol):
    """Where buckets live."""

    async def take(self, wants: Sequence[Want]) -> Sequence[Taken] | Shortage:
        """All or nothing. Raises QuotaAwayError."""

    def give(self, limit: Limit, amount: float) -> None:
        """Give back; returns at once and never fails, at worst what is given is lost until it refills."""


class LocalBuckets:
    """Buckets in this process; exact for one gateway."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[CounterKey, Bucket] = {}

    async def take(self, wants: Sequence[Want]) -> Sequence[Taken] | Shortage:
        """Never waits, so that nothing comes between looking and taking."""
        buckets = [self._bucket(want.limit) for want in wants]
        short = [
            Shortage(want.limit, bucket.level, bucket.seconds_until(want.least))
            for want, bucket in zip(wants, buckets, strict=True)
            if bucket.level < want.least
        ]
        if short:
            return max(short, key=lambda each: each.wait)
        taken = []
        for want, bucket in zip(wants, buckets, strict=True):
            amount = min(want.most, bucket.level)
            bucket.take(amount)
            taken.append(Taken(amount, bucket.level))
        return taken

    def give(self, limit: Limit, amount: float) -> None:
        """At once."""
        self._bucket(limit).give(amount)

    def _bucket(self, limit: Limit) -> Bucket:
        now = self._clock()
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            if len(self._buckets) >= _FORGET_ABOVE:
                self._forget_full(now)
            bucket = self._buckets[limit.key] = Bucket.full(limit.capacity, limit.per_second, now=now)
        bucket.refill(now)
        if (bucket.capacity, bucket.per_second) != (limit.capacity, limit.per_second):
            bucket.resize(limit.capacity, limit.per_second)
        return bucket

    def _forget_full(self, now: float) -> None:
        for bucket in self._buckets.values():
            bucket.refill(now)
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full}


@dataclass(slots=True)
class _Lease:
    """What this gateway holds of a counter, what it is asking for ahead, and what it last heard of the shared level."""

    limit: Limit
    balance: float = 0.0
    asked: float = 0.0
    expires_at: float = 0.0
    level: float = 0.0
    heard_at: float = 0.0

    def remaining(self, now: float) -> float:
        """Shared level as it should be now, plus what is held here: a lease moves nothing that users see."""
        known = self.level + (now - self.heard_at) * self.limit.per_second + self.balance
        return min(self.limit.capacity, max(0.0, known))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a user is told of a counter."""

    limit: Limit
    remaining: float

    @property
    def reset_seconds(self) -> float:
        """Until the bucket is full again; above 0 unless it is."""
        return (self.limit.capacity - self.remaining) / self.limit.per_second


class Reservation:
    """What a request holds of its counters, until it is settled; the first word counts."""

    def __init__(self, quota: "Quota", held: Sequence[tuple[Limit, float]]) -> None:
        self._quota = quota
        self._held = held
        self._settled = False

    def settle(self, tokens: float | None) -> None:
        """The request cost so many tokens, or nothing at all (None): give back the rest."""
        if self._settled:
            return
        self._settled = True
        for limit, amount in self._held:
            spent = 0.0 if tokens is None else tokens if limit.unit == "tokens" else amount
            self._quota.give_back(limit, amount - spent)

    def standings(self) -> list[Standing]:
        """The counters as they stand now."""
        return [self._quota.standing(limit) for limit, _ in self._held]


class Quota:
    """Leases from a store. ``lease_share`` of a counter's capacity is taken ahead; 0 where the store is local."""

    def __init__(
        self, store: QuotaStore, *, clock: Callable[[], float], lease_share: float = 0.0, lease_seconds: float = 30.0
    ) -> None:
        self._store = store
        self._clock = clock
        self._lease_share = lease_share
        self._lease_seconds = lease_seconds
        self._leases: dict[CounterKey, _Lease] = {}

    async def reserve(self, wanted: Sequence[tuple[Limit, float]]) -> Reservation | Shortage:
        """All counters or none. Raises QuotaAwayError when leases do not suffice and the store is away."""
        leases = [self._lease(limit) for limit, _ in wanted]
        used = [min(lease.balance, amount) for lease, (_, amount) in zip(leases, wanted, strict=True)]
        for lease, part in zip(leases, used, strict=True):
            lease.balance -= part
        try:
            short = await self._cover(wanted, leases, used)
        except BaseException:
            self._put_back(leases, used)
            raise
        if short is not None:
            self._put_back(leases, used)
            return short
        return Reservation(self, wanted)

    async def _cover(
        self, wanted: Sequence[tuple[Limit, float]], leases: Sequence[_Lease], used: Sequence[float]
    ) -> Shortage | None:
        missing = [
            (lease, amount - part)
            for lease, (_, amount), part in zip(leases, wanted, used, strict=True)
            if amount > part
        ]
        if not missing:
            return None
        # Requests that ask at the same time ask for one lease together.
        ahead = [
            max(0.0, self._lease_share * lease.limit.capacity - lease.balance - lease.asked) for lease, _ in missing
        ]
        wants = [Want(lease.limit, least, least + more) for (lease, least), more in zip(missing, ahead, strict=True)]
        for (lease, _), more in zip(missing, ahead, strict=True):
            lease.asked += more
        try:
            answer = await self._store.take(wants)
        finally:
            for (lease, _), more in zip(missing, ahead, strict=True):
                lease.asked -= more
        now = self._clock()
        if isinstance(answer, Shortage):
            self._hear(self._lease(answer.limit), answer.level, now)
            return answer
        for (lease, least), taken in zip(missing, answer, strict=True):
            lease.balance += taken.amount - least
            lease.expires_at = now + self._lease_seconds
            self._hear(lease, taken.level, now)
        return None

    def give_back(self, limit: Limit, amount: float) -> None:
        """What was reserved and not used; negative where a request cost more than that."""
        lease = self._lease(limit)
        if amount < 0:
            part = min(lease.balance, -amount)
            lease.balance -= part
            self._store.give(limit, amount + part)
            lease.level = max(0.0, lease.level + amount + part)
            return
        kept = min(amount, max(0.0, self._lease_share * limit.capacity - lease.balance))
        lease.balance += kept
        if amount > kept:
            self._store.give(limit, amount - kept)
            lease.level = min(limit.capacity, lease.level + amount - kept)

    def standing(self, limit: Limit) -> Standing:
        """For headers."""
        return Standing(limit, self._lease(limit).remaining(self._clock()))

    def _lease(self, limit: Limit) -> _Lease:
        now, lease = self._clock(), self._leases.get(limit.key)
        if lease is None:
            if len(self._leases) >= _FORGET_ABOVE:
                self._leases = {key: each for key, each in self._leases.items() if each.balance > 0}
            lease = self._leases[limit.key] = _Lease(limit, level=limit.capacity, heard_at=now)
        lease.limit = limit
        if lease.balance and now >= lease.expires_at:
            lease.balance = 0.0  # as if this gateway had died: the shared bucket refills by itself
        return lease

    @staticmethod
    def _hear(lease: _Lease, level: float, now: float) -> None:
        lease.level, lease.heard_at = level, now

    @staticmethod
    def _put_back(leases: Sequence[_Lease], used: Sequence[float]) -> None:
        for lease, part in zip(leases, used, strict=True):
            lease.balance += part
