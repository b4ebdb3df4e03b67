"""Picks replicas for requests, and remembers which replica got which prefix."""

import random
from collections.abc import Callable, Sequence

from tidewheel.gateway.placement.choice import Candidate, choose, ramp
from tidewheel.gateway.placement.prefix import Prefix
from tidewheel.gateway.placement.warmth import Warmth
from tidewheel.gateway.replicas import Replica
from tidewheel.gateway.settings import Settings


class Placement:
    """One per process."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float], rng: random.Random) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self.warmth = Warmth(capacity=settings.affinity_positions, seconds=settings.affinity_seconds)

    def pick(
        self, replicas: Sequence[Replica], *, prefix: Prefix | None, cost: float, tried: frozenset[str] = frozenset()
    ) -> Replica | None:
        """A ready replica that was not tried yet, those in trouble last; where none is ready, one that was."""
        now = self._clock()
        untried = [replica for replica in replicas if replica.uid not in tried]
        ready = [replica for replica in untried if replica.ready] or [replica for replica in untried if replica.lapsed]
        if not ready:
            return None
        least = min(replica.hindrance(now) for replica in ready)
        fit = [replica for replica in ready if replica.hindrance(now) == least]
        if self._settings.placement == "random":
            return self._rng.choice(fit)
        if self._settings.placement == "least-loaded":
            prefix = None
        candidates = [self._candidate(replica, now) for replica in fit]
        warm = None
        if prefix is not None and len(fit) > 1:
            warm = self.warmth.find(prefix.positions, among={replica.uid for replica in fit}, now=now)
        choice = choose(
            candidates,
            prefix=prefix,
            warm=warm,
            cost=max(1.0, cost),
            allowance=self._settings.affinity_allowance_tokens,
            rng=self._rng,
        )
        assert choice is not None, "there are candidates"
        replica = fit[choice.index]
        if prefix is not None and len(replicas) > 1:
            self.warmth.note(prefix.positions, replica.uid, now=now)
        return replica

    def warm_share(self, replicas: Sequence[Replica], prefix: Prefix | None) -> float:
        """Share of a prompt that one of these replicas likely has in its cache."""
        if prefix is None or not prefix.positions:
            return 0.0
        among = {replica.uid for replica in replicas if replica.ready}
        warm = self.warmth.find(prefix.positions, among=among, now=self._clock())
        return warm.depth / len(prefix.positions) if warm is not None else 0.0

    def _candidate(self, replica: Replica, now: float) -> Candidate:
        load, kv_used, full, report = float(replica.tokens_in_flight), 0.0, False, replica.report
        if report is not None and now - replica.reported_at <= self._settings.load_stale_seconds:
            load = max(load, float(report.used_tokens))
            kv_used = report.used_tokens / report.kv_tokens
            full = replica.in_flight + replica.elsewhere >= report.slots
        share = ramp(now - replica.born, self._settings.ramp_seconds)
        return Candidate(replica.uid, replica.seed, load, kv_used=kv_used, full=full, share=share)
