"""What a dashboard reads about rollbacks: how long the judge's verdict took to become a write."""

from prometheus_client import CollectorRegistry

from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.rollouts.tallies import JudgeTallies
from tidewheel.rollout.judge.findings import Verdict, VerdictKind

KEY = ModelKey("shop", "chat")


def verdict(kind: VerdictKind) -> Verdict:
    return Verdict(rollout_id="r1", step=0, at=100.0, kind=kind, reason=kind.value, message="it says so")


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self._registry = CollectorRegistry()
        self.tallies = JudgeTallies(self._registry, now=lambda: self.now)

    def rollbacks(self) -> tuple[float, float]:
        """How many, and seconds in all."""
        name = "tidewheel_rollout_rollback_seconds"
        found = [self._registry.get_sample_value(f"{name}_{part}") for part in ("count", "sum")]
        return found[0] or 0.0, round(found[1] or 0.0, 3)


def test_a_rollback_is_timed_from_the_first_verdict_that_asks_for_it() -> None:
    world = World()
    world.tallies.looked(KEY, verdict(VerdictKind.BREACH))
    world.now += 0.25
    world.tallies.looked(KEY, verdict(VerdictKind.BREACH))
    world.now += 0.25
    world.tallies.moved(KEY, "RolledBack")
    world.tallies.moved(KEY, "RolledBack")
    assert world.rollbacks() == (1, 0.5)


def test_writes_that_no_verdict_asked_for_are_not_timed() -> None:
    world = World()
    world.tallies.moved(KEY, "RolledBack")  # the rule went back
    world.tallies.looked(KEY, verdict(VerdictKind.BREACH))
    world.tallies.looked(KEY, verdict(VerdictKind.THIN))
    world.tallies.moved(KEY, "RolledBack")
    world.tallies.looked(KEY, verdict(VerdictKind.BREACH))
    world.tallies.moved(KEY, "StepStarted")
    assert world.rollbacks() == (0, 0)
