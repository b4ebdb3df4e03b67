"""Replicas as this process sees them: how busy each is, and whether it answered lately.

``in_flight`` is what this process has open, whatever other processes do. A request takes its place with ``occupied``
and gives it back exactly once, however it ends.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from tidewheel.gateway.load_report import LoadReport
from tidewheel.gateway.snapshot import Endpoint, Snapshot, VersionKey
from tidewheel.gateway.suspicion import Suspicion
from tidewheel.gateway.upstream import Pool

_MOST_DOUBLINGS = 4


class Replica:
    """One engine pod, known by its uid; its address may change."""

    __slots__ = (
        "_failures",
        "_suspicion",
        "born",
        "elsewhere",
        "in_flight",
        "is_engine",
        "lapsed",
        "pool",
        "pressed_until",
        "ready",
        "report",
        "reported_at",
        "seed",
        "suspended_until",
        "tokens_in_flight",
        "uid",
    )

    def __init__(self, uid: str, pool: Pool, *, born: float = -math.inf, is_engine: bool = True) -> None:
        """Another region's gateway ``is_engine`` not: it looks after its own engines' silence."""
        self.uid = uid
        self.is_engine = is_engine
        self.seed = int.from_bytes(blake2b(uid.encode(), digest_size=8).digest(), "big")
        self.born = born
        self.tokens_in_flight = 0
        self.pool = pool
        self.ready = True
        self.lapsed = False
        self.in_flight = 0
        self.pressed_until = 0.0
        self.suspended_until = 0.0
        self.report: LoadReport | None = None
        self.reported_at = 0.0
        self.elsewhere = 0  # requests that it had from others than this process when it reported
        self._failures = 0
        self._suspicion: Suspicion | None = None

    def follow(self, endpoint: Endpoint) -> None:
        """What Kubernetes says of it.

        ``lapsed``: it was ready and stays, only its probe fails. A kubelet short of time does that to healthy replicas,
        to all of them at once: where none is ready they are better than an error (Envoy's panic threshold).
        """
        known = self.ready or self.lapsed
        self.ready = endpoint.ready and not endpoint.terminating
        self.lapsed = known and not self.ready and not endpoint.terminating

    @contextmanager
    def occupied(self, *, now: float, probe_seconds: float, tokens: int = 0) -> Iterator[None]:
        """Count one request and its expected tokens while the block runs.

        A replica in doubt is tried by one request, not by a crowd.
        """
        self.in_flight += 1
        self.tokens_in_flight += tokens
        if self._failures:
            self.suspended_until = max(self.suspended_until, now + probe_seconds)
        try:
            yield
        finally:
            self.in_flight -= 1
            self.tokens_in_flight -= tokens

    def note_report(self, report: LoadReport, *, now: float) -> None:
        """What it says of itself."""
        self.report, self.reported_at = report, now
        self.elsewhere = max(0, report.running + report.waiting - self.in_flight)

    def press_back(self, *, now: float, seconds: float) -> None:
        """It said 429 or 503: others go first for a while. This is no failure (sglang#39464)."""
        self.pressed_until = now + seconds
        self._failures = 0

    def suspend(self, *, now: float, seconds: float) -> None:
        """It could not be reached or hung up: others go first, longer each time."""
        self.suspended_until = now + seconds * 2.0 ** min(self._failures, _MOST_DOUBLINGS)
        self._failures += 1

    def answered(self) -> None:
        """It gave an answer, whatever it was: it is alive."""
        self._failures = 0
        self.suspended_until = 0.0

    def heard(self, now: float) -> None:
        """Bytes of an answer came: it is alive, and its streams flow."""
        if self._failures:
            self.answered()
        if self._suspicion is not None:
            self._suspicion.heard(now)

    def doubt(self, *, now: float) -> bool:
        """One of its streams is silent: whether there is a second sign of trouble (see ``suspicion``)."""
        address = self.pool.address
        if self._suspicion is None or self._suspicion.address != address:
            self._suspicion = Suspicion(address, self.pool.settings, now=now)
        return self._suspicion.doubt(now=now, streams=self.in_flight)

    def hindrance(self, now: float) -> int:
        """0 free to take work, 1 asked us to hold back, 2 was unreachable."""
        if now < self.suspended_until:
            return 2
        return 1 if now < self.pressed_until else 0


class RetryBudget:
    """Retries as a share of requests, so that trouble is not multiplied; never below 0 nor above the burst."""

    __slots__ = ("_balance", "_burst", "_ratio")

    def __init__(self, *, ratio: float, burst: float) -> None:
        self._ratio = ratio
        self._burst = burst
        self._balance = burst

    def deposit(self) -> None:
        """One request came."""
        self._balance = min(self._burst, self._balance + self._ratio)

    def withdraw(self) -> bool:
        """Take one retry; False when there is none left."""
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True


class Fleet:
    """All replicas, by version and pod uid."""

    def __init__(self, make_pool: Callable[[str, int], Pool], make_budget: Callable[[], RetryBudget]) -> None:
        self._make_pool = make_pool
        self._make_budget = make_budget
        self._replicas: dict[VersionKey, dict[str, Replica]] = {}
        self._budgets: dict[VersionKey, RetryBudget] = {}
        self._changed = asyncio.Event()

    def apply(self, snapshot: Snapshot) -> None:
        """Follow the endpoints: one that went, or is terminating, gets no new request from now on."""
        wanted = snapshot.endpoints
        for key in [key for key in self._replicas if key not in wanted]:
            self._drop(self._replicas.pop(key).values())
        for key in [key for key in self._budgets if key not in wanted]:
            del self._budgets[key]
        for key, endpoints in wanted.items():
            self._apply_version(key, endpoints)
        self._changed.set()
        self._changed = asyncio.Event()

    def _apply_version(self, key: VersionKey, endpoints: Iterable[Endpoint]) -> None:
        known = self._replicas.setdefault(key, {})
        joining = bool(known)  # beside others that are warm; the first ones of a version have nobody to spare them
        present = {endpoint.uid: endpoint for endpoint in endpoints}
        self._drop([known.pop(uid) for uid in list(known) if uid not in present])
        for uid, endpoint in present.items():
            replica = known.get(uid)
            if replica is None:
                born = time.monotonic() if joining else -math.inf
                replica = known[uid] = Replica(uid, self._make_pool(endpoint.host, endpoint.port), born=born)
                replica.ready = False
            elif replica.pool.address != (endpoint.host, endpoint.port):
                replica.pool.close()
                replica.pool = self._make_pool(endpoint.host, endpoint.port)
            replica.follow(endpoint)

    @staticmethod
    def _drop(replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            replica.ready = replica.lapsed = False
            replica.pool.close()

    def replicas(self, key: VersionKey) -> list[Replica]:
        """All replicas of a version, ready or not."""
        return list(self._replicas.get(key, {}).values())

    def __iter__(self) -> Iterator[Replica]:
        """Every replica there is."""
        for known in self._replicas.values():
            yield from known.values()

    def has_ready(self, key: VersionKey, *, besides: frozenset[str] = frozenset()) -> bool:
        """Whether a version can take a request now, on another replica than those."""
        return any(replica.ready and uid not in besides for uid, replica in self._replicas.get(key, {}).items())

    async def await_ready(self, key: VersionKey, *, seconds: float, besides: frozenset[str] = frozenset()) -> None:
        """Wait until a version can take a request, but no longer than that.

        A table may name a version before its endpoints are seen (seconds before, where the control plane is busy), and
        the only replica of a version may be replaced: neither is worth an error (dynamo#13622).
        """
        if self.has_ready(key, besides=besides):
            return
        try:
            async with asyncio.timeout(seconds):
                while not self.has_ready(key, besides=besides):
                    await self._changed.wait()
        except TimeoutError:
            return

    def budget(self, key: VersionKey) -> RetryBudget:
        """The retry budget of a version."""
        if key not in self._budgets:
            self._budgets[key] = self._make_budget()
        return self._budgets[key]

    def close(self) -> None:
        """Close idle connections."""
        for known in self._replicas.values():
            self._drop(known.values())
