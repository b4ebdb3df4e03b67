"""Whatever happens in whatever order: invariants of a rollout, on thousands of random histories with a fake clock."""

import contextlib
import random
from copy import deepcopy
from dataclasses import replace
from datetime import time

import pytest
from tests.rollout.world import BLOCK, OperatorDiedError, World

from tidewheel.crds.rolloutchoices import OnCapacity, Patience
from tidewheel.rollout.judge.findings import VerdictKind
from tidewheel.rollout.machine.policy import RolloutPolicy, Step
from tidewheel.rollout.machine.situation import Decision, VersionFacts
from tidewheel.rollout.machine.splits import normal
from tidewheel.rollout.planning.windows import ChangeWindow

SHORT = 300
NEVER, NEVER_END = time(4, 0), time(4, 1)
"""A window that no history lives long enough to see open: all begin at noon."""
GOALS = (
    {"v42": 10_000},
    {"v43": 10_000},
    {"v44": 10_000},
    {"v42": 5000, "v43": 5000},
    {"v42": 9000, "v43": 1000},
    {"v42": 2000, "v44": 8000},
)


class History:
    """One random life of a model; checks after every operator write, and at any moment whether one write leads back."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        steps = tuple(Step(progress) for progress in sorted(self.random.sample([50, 100, 500, 2500, 5000, 8000], 3)))
        policy = RolloutPolicy(
            steps=(*steps, Step(10_000)),
            bake_seconds=120,
            max_hold_seconds=900,
            on_base_down=self.random.choice(list(Patience)),
        )
        self.world = World(policy=policy, on_capacity=self.random.choice(list(OnCapacity)))
        self.offered: dict[tuple[str, int], list[tuple[float, float]]] = {}
        self.highest: dict[str, int] = {}

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self.random.choice(ACTIONS)(self)
            self.check_way_back()

    def tick(self) -> None:
        world = self.world
        before, table = world.state, world.table
        seconds = self.random.choice([1.0, 5.0, BLOCK, BLOCK, BLOCK, 45.0])
        with contextlib.suppress(OperatorDiedError):
            world.tick(seconds)
        self.check_weights()
        self.check_steps()
        if world.table is not table and before is not None and table is not None and world.table is not None:
            for entry in world.table.rejected:
                for version, facts in world.versions.items():
                    if facts.digest == entry.digest and not world.table.by_person:
                        # A rollback restores what there was, also what a rejected version had been left with.
                        most = max(normal(table.split).get(version, 0), before.start.get(version, 0))
                        assert world.split.get(version, 0) <= most, "a rejected digest grew"
        self.check_bake()

    def check_weights(self) -> None:
        table = self.world.table
        assert table is not None
        assert sum(table.split.values()) == 10_000
        assert all(share >= 0 for share in table.split.values())
        assert not table.previous or sum(table.previous.values()) == 10_000

    def check_steps(self) -> None:
        """Nobody gets more traffic without evidence, unless a person said so."""
        for before, decision, verdict in self.world.log:
            if verdict is not None and verdict.credit is not None:
                self.offered.setdefault((verdict.rollout_id, verdict.step), []).append(verdict.credit)
            state = decision.state
            if decision.reason in {"StepStarted", "MakingRoom"}:
                self.check_raise(decision)
            if before is None or state is None or state.promoted_by or not before.judged:
                continue
            passed = state.id == before.id and state.step > before.step
            if passed or (decision.reason == "Promoted" and state.id == before.id):
                assert union(self.offered.get((before.id, before.step), [])) >= before.bake_seconds - 1e-3
                assert verdict is not None
                assert (verdict.rollout_id, verdict.step) == (before.id, before.step)
                assert verdict.kind is VerdictKind.CLEAR
        self.world.log = []

    def check_raise(self, decision: Decision) -> None:
        """Traffic is given in open windows only, to replicas that can carry it, and never more than the step's."""
        world, state = self.world, decision.state
        assert not world.policy.change_windows
        assert state is not None
        assert decision.split is not None
        if state.canary is None:
            return
        share = decision.split.get(state.canary, 0)
        assert share <= state.split.get(state.canary, 0)
        assert world.versions[state.canary].ready >= -(-share * 10 // 10_000)

    def check_bake(self) -> None:
        """Never more than the judged time, each second once; and no step passed without its bake."""
        state = self.world.state
        if state is None or state.is_finished:
            return
        assert state.baked_seconds <= union(self.offered.get((state.id, state.step), [])) + 1e-3

    def check_way_back(self) -> None:
        """From here, a breach leads back in one look, if base serves at all."""
        world = deepcopy(self.world)
        world.die_after_table = False
        state = world.state
        if state is None or state.is_finished or not state.start or world.last is None or world.last.judge is None:
            return
        if world.state != world.last.state or world.versions["v42"].ready == 0 or state.base is None:
            return
        if world.goal != state.goal or not world.versions[state.base].ready:
            return
        table = world.table
        if table is None or (table.by_person and table.generation > state.table_generation):
            return
        if table.control is not None and table.control.no_rollback:
            return
        if world.versions[state.canary or ""].digest != state.canary_digest:
            return
        world.kind = VerdictKind.BREACH
        world.judge()
        world.look()
        assert world.split == normal(state.start)
        assert world.table is not None
        assert world.table.rejection_of(state.canary_digest) is not None

    def look_again(self) -> None:
        """A second look at the same verdict: an event woke the operator."""
        with contextlib.suppress(OperatorDiedError):
            self.world.look()
        self.check_weights()
        self.check_steps()
        self.check_bake()

    def judge_says(self) -> None:
        kinds = [*VerdictKind, VerdictKind.CLEAR, VerdictKind.CLEAR, VerdictKind.CLEAR, VerdictKind.CLEAR, None]
        self.world.kind = self.random.choice(kinds)

    def spec_edit(self) -> None:
        self.world.goal = dict(self.random.choice(GOALS))
        self.world.generation += 1

    def steps_edit(self) -> None:
        steps = tuple(Step(progress) for progress in sorted(self.random.sample([100, 700, 2500, 6000], 2)))
        self.world.policy = replace(self.world.policy, steps=(*steps, Step(10_000)))
        self.world.generation += 1

    def operator_dies(self) -> None:
        self.world.die_after_table = True

    def capacity(self) -> None:
        name = self.random.choice(["v42", "v43", "v44"])
        ready = self.random.choice([0, 1, 5, 10, 10, 10])
        self.world.versions = {**self.world.versions, name: replace(self.world.versions[name], ready=ready)}

    def everything_ready(self) -> None:
        self.world.versions = {name: replace(facts, ready=10) for name, facts in self.world.versions.items()}

    def gateways(self) -> None:
        choice = self.random.randrange(4)
        if choice == 0:
            self.world.gateways_follow = not self.world.gateways_follow
        elif choice == 1:
            self.world.gateways["c"] = None
        elif choice == 2:
            self.world.gateways.pop("c", None)
        else:
            self.world.gateways_follow = True

    def window(self) -> None:
        """Somebody closes the change window, or opens it again."""
        closed = () if self.world.policy.change_windows else (ChangeWindow(start=NEVER, end=NEVER_END),)
        self.world.policy = replace(self.world.policy, change_windows=closed)

    def pause(self) -> None:
        self.world.paused = not self.world.paused

    def control(self) -> None:
        wishes: dict[str, object] = self.random.choice(
            [{"paused": True}, {"paused": False}, {"promote_step": self.random.randint(1, 4)}, {}]
        )
        self.world.control(**wishes)

    def retry(self) -> None:
        assert self.world.table is not None
        if self.world.table.rejected:
            self.world.control(retry_digest=self.random.choice(self.world.table.rejected).digest)

    def rollback_by_hand(self) -> None:
        state, table = self.world.state, self.world.table
        assert table is not None
        if state is not None and state.start and state.canary:
            self.world.person_sets(state.start, rejects=state.canary)

    def other_digest(self) -> None:
        name = self.random.choice(["v43", "v44"])
        digest = f"sha256:{name}-{self.random.randrange(1000)}"
        self.world.versions = {**self.world.versions, name: VersionFacts(digest=digest, ready=10)}

    def status_lost(self) -> None:
        """A restored backup: the table is there, the progress is not."""
        self.world.stored = None


def union(spans: list[tuple[float, float]]) -> float:
    """Length of all spans together, overlaps once."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


RARE = [
    History.look_again,
    History.look_again,
    History.spec_edit,
    History.steps_edit,
    History.operator_dies,
    History.gateways,
    History.pause,
    History.window,
    History.window,
    History.control,
    History.retry,
    History.rollback_by_hand,
    History.other_digest,
    History.status_lost,
]
ACTIONS = [*[History.tick] * 40, *[History.judge_says] * 4, *[History.everything_ready] * 2, History.capacity, *RARE]


@pytest.mark.parametrize("seed", range(25))
def test_invariants_hold_in_every_interleaving(seed: int) -> None:
    History(seed).run(SHORT)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_invariants_hold_in_thousands_of_interleavings(block: int) -> None:
    for seed in range(1000 + block * 200, 1200 + block * 200):
        History(seed).run(SHORT)


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_operator_reaches_the_same_end(seed: int) -> None:
    """kill -9 at random points: same splits in the same order, and the bake within one look (own)."""
    chance = random.Random(seed)
    calm, troubled = World(), World()
    for world in (calm, troubled):
        world.want(v42=0, v43=100)
    calm.until_finished()
    for _ in range(2000):
        troubled.die_after_table = chance.random() < 0.2
        try:
            troubled.tick()
        except OperatorDiedError:
            continue
        if troubled.state is not None and troubled.state.is_finished:
            break
    assert list(dict.fromkeys(map(str, troubled.splits))) == list(dict.fromkeys(map(str, calm.splits)))
    assert troubled.split == calm.split == {"v43": 10_000}
