"""Whatever happens in whatever order: invariants of rollouts, with the operator's own code behind every write.

An operator may die after any of its writes, gateways and replicas come and go, people edit, pause, promote, roll back
and retry, Prometheus falls silent. The step machine alone is tested on many more histories in `tests/rollout`.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.operator.rollouts.world import BLOCK, World

from tidewheel.clients.resources import ROUTING_TABLES, KubeObject, Resource
from tidewheel.rollout.judge.findings import VerdictKind

ACTIONS_EACH = 25
GOALS: tuple[dict[str, int], ...] = (
    {"v42": 100, "v43": 0},
    {"v42": 0, "v43": 100},
    {"v42": 0, "v43": 100},
    {"v42": 0, "v44": 100},
    {"v42": 50, "v43": 50},
)
STEPS = ({"percent": 1}, {"percent": 25}, {"percent": 100})


class History:
    """One random life; every table that the operator writes is checked as it is written."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        for version in ("v42", "v43", "v44"):
            self.world.apply_version(version)
        self.world.apply_rule(steps=STEPS, v42=100, v43=0)
        self.world.settle()
        self.before = self.table()
        self.world.store.on_write = self.check_write

    def run(self) -> None:
        for _ in range(ACTIONS_EACH):
            self.random.choice(ACTIONS)(self)
        self.recover()

    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.table()["spec"]
        return found

    def check_write(self, resource: Resource, body: KubeObject) -> None:
        if resource != ROUTING_TABLES:
            return
        spec, before = body["spec"], self.before
        self.before = spec
        now, had = weights(spec["targets"]), weights(before["targets"])
        assert sum(now.values()) == 10_000
        assert not spec.get("previous") or sum(weights(spec["previous"]).values()) == 10_000
        assert len(now) <= 3
        rejected = {entry["digest"] for entry in before.get("rejected", ()) if entry in spec.get("rejected", ())}
        back = weights(spec.get("previous", ()))
        for target in spec["targets"]:
            grows = target["weight"] > had.get(target["version"], 0)
            if not grows:
                continue
            restored = target["weight"] <= back.get(target["version"], 0)
            assert target["digest"] not in rejected or restored, "a rejected digest grew"
            ready = self.world.serving(target["version"])
            assert ready > 0 or restored, f"{target['version']} grew without a replica"

    def check_bake(self) -> None:
        """A bake second is counted once, and only if it was judged."""
        rollout = self.world.rollout()
        if rollout is None or "outcome" in rollout:
            return
        offered = self.world.credits.get((rollout["id"], rollout["step"]), [])
        assert rollout["bakedSeconds"] <= union(offered) + 1e-3

    def tick(self) -> None:
        before = self.world.rollout()
        self.world.tick(self.random.choice([1.0, 5.0, BLOCK, BLOCK, 45.0]))
        after = self.world.rollout()
        self.check_bake()
        if not before or not after or before["id"] != after["id"] or after.get("promotedBy"):
            return
        if after["step"] > before["step"] and before["judged"]:
            offered = self.world.credits.get((before["id"], before["step"]), [])
            assert union(offered) >= before["bakeSeconds"] - 1e-3, "a step was passed without its bake"

    def judge_says(self) -> None:
        self.world.kind = self.random.choice([*VerdictKind, *[VerdictKind.CLEAR] * 4, None])

    def prometheus_is_lost(self) -> None:
        self.world.kind = None

    def rule_edit(self) -> None:
        self.world.apply_rule(steps=STEPS, **self.random.choice(GOALS))

    def steps_edit(self) -> None:
        percents = {t["version"]: t["percent"] for t in self.world.rule()["spec"]["traffic"]}
        self.world.apply_rule(steps=({"percent": 10}, {"percent": 60}, {"percent": 100}), **percents)

    def operator_dies(self) -> None:
        self.world.store.die_after = self.world.store.writes + self.random.randint(1, 4)

    def replicas(self) -> None:
        self.world.unready = set(self.random.sample(["v42", "v43", "v44"], self.random.choice([0, 0, 1, 1, 2])))

    def gateways(self) -> None:
        self.world.gateways_follow = self.random.random() < 0.7
        if self.random.random() < 0.5:
            self.world.gateways["c"] = None
        else:
            self.world.gateways.pop("c", None)

    def pause(self) -> None:
        self.world.pause(paused=self.random.random() < 0.5)

    def control(self) -> None:
        self.world.control(**self.random.choice([{"paused": True}, {"paused": False}, {"promoteStep": 3}, {}]))
        self.before = self.table()

    def retry(self) -> None:
        if rejected := self.table().get("rejected"):
            self.world.control(retryDigest=self.random.choice(rejected)["digest"])
            self.before = self.table()

    def rollback_by_hand(self) -> None:
        self.world.roll_back_by_hand()
        self.before = self.table()

    def another_digest(self) -> None:
        self.world.apply_version(self.random.choice(["v43", "v44"]), image=f"tidewheel:{self.random.randrange(9)}")

    def api_server_is_away(self) -> None:
        self.world.store.down = True
        self.world.tick(5)
        self.world.store.down = False

    def recover(self) -> None:
        """With everything well again, what the rule asks for comes about, or the status says why not."""
        world = self.world
        world.store.die_after, world.unready, world.kind = None, set(), VerdictKind.CLEAR
        world.gateways_follow = True
        world.gateways.pop("c", None)
        world.pause(paused=False)
        world.control(paused=False)
        self.before = self.table()
        for _ in range(60):
            world.tick()
            rollout = world.rollout() or {}
            if "outcome" in rollout and world.condition("Reconciling")[0] == "False":
                break
        wanted = {t["version"]: t["percent"] * 100 for t in world.rule()["spec"]["traffic"] if t["percent"]}
        settled = world.condition("Ready") == ("True", "SplitInForce") and world.split() == wanted
        assert settled or world.condition("Degraded")[1] in {"VersionRejected", "SplitOverridden"}, (
            world.split(),
            wanted,
            world.rule()["status"],
        )


ACTIONS: tuple[Callable[[History], None], ...] = (
    *[History.tick] * 14,
    *[History.judge_says] * 3,
    *[History.rule_edit] * 2,
    History.prometheus_is_lost,
    History.steps_edit,
    *[History.operator_dies] * 3,
    History.replicas,
    History.gateways,
    History.pause,
    History.control,
    History.retry,
    History.rollback_by_hand,
    History.another_digest,
    History.api_server_is_away,
)


def weights(targets: Any) -> dict[str, int]:
    return {target["version"]: target["weight"] for target in targets if target["weight"]}


def union(spans: list[tuple[float, float]]) -> float:
    """Length of all spans together, overlaps once."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def run(seed: int) -> None:
    history = History(seed)
    try:
        history.run()
    finally:
        history.world.close()


@pytest.mark.parametrize("seed", range(8))
def test_invariants_hold_in_every_interleaving(seed: int) -> None:
    run(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 1100))
def test_invariants_hold_in_a_thousand_more(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("write", range(1, 13))
def test_an_operator_killed_after_any_write_reaches_the_same_end(write: int) -> None:
    world = World()
    for version in ("v42", "v43"):
        world.apply_version(version)
    world.apply_rule(steps=STEPS, v42=100)
    world.settle()
    world.apply_rule(steps=STEPS, v42=0, v43=100)
    world.store.die_after = world.store.writes + write
    rollout = world.until_finished()
    assert world.deaths == 1
    assert world.split() == {"v43": 10_000}
    assert rollout["outcome"] == "Promoted"
    judged = [spans for (rollout_id, _), spans in world.credits.items() if rollout_id == rollout["id"]]
    assert all(union(spans) >= 120 for spans in judged)
    assert len(judged) == 2
    world.close()
