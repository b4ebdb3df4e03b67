"""Shadow prompts as a step before the first weight: hold, roll back, pass by a person, lost answers."""

from dataclasses import replace

import pytest
from tests.rollout.world import POLICY, World

from tidewheel.crds.rolloutchoices import OnBreach
from tidewheel.rollout.machine.state import Outcome
from tidewheel.rollout.quality.scoring import QualityKind, QualitySettings

GATED = replace(POLICY, quality=QualitySettings())
STRICT = replace(POLICY, quality=QualitySettings(on_breach=OnBreach.ROLLBACK))


def started(world: World) -> World:
    world.want(v43=100)
    for _ in range(6):
        world.tick(5)
    return world


def test_nobody_gets_a_version_that_has_not_answered() -> None:
    world = started(World(policy=GATED))
    assert world.split == {"v42": 10_000}
    assert world.last is not None
    assert world.last.ask_quality
    assert world.last.reason == "ShadowPrompts"
    assert not world.last.suspended
    assert world.last.grow == {"v43": 100}, "its replicas are there, and stay"


def test_good_answers_let_the_rollout_go_on_and_are_asked_once() -> None:
    world = started(World(policy=GATED, quality=QualityKind.CLEAR))
    assert world.split == {"v42": 9900, "v43": 100}
    assert world.state is not None
    assert (world.state.quality, world.state.quality_message) == ("CLEAR", "20 shadow prompts: said so")
    assert world.until_finished().outcome is Outcome.PROMOTED


@pytest.mark.parametrize("kind", [QualityKind.BREACH, QualityKind.SUSPECT])
def test_bad_answers_wait_for_a_person_who_may_pass_them(kind: QualityKind) -> None:
    world = started(World(policy=GATED, quality=kind))
    assert world.split == {"v42": 10_000}
    assert world.last is not None
    assert world.last.suspended
    assert world.last.stalled is not None
    assert world.last.stalled.reason == "QualityHeld"
    world.control(promote_step=2)
    world.tick(5)
    world.tick(5)
    assert world.split == {"v42": 9500, "v43": 500}


def test_evidently_bad_answers_reject_where_the_rule_says_so() -> None:
    world = started(World(policy=STRICT, quality=QualityKind.BREACH))
    assert world.split == {"v42": 10_000}
    assert world.splits == []
    assert world.state is not None
    assert (world.state.outcome, world.state.reason) == (Outcome.REJECTED, "QualityRejected")
    assert world.table is not None
    assert world.table.rejection_of("sha256:v43") is not None


@pytest.mark.parametrize("policy", [GATED, STRICT], ids=["hold", "rollback"])
def test_without_answers_it_holds_asks_again_and_never_rejects(policy: object) -> None:
    world = started(World(policy=policy, quality=QualityKind.BLIND))  # type: ignore[arg-type]
    assert world.split == {"v42": 10_000}
    assert world.last is not None
    assert world.last.ask_quality
    world.quality = QualityKind.CLEAR
    world.tick(5)
    assert world.split == {"v42": 9900, "v43": 100}


def test_the_answers_of_another_rollout_are_not_taken() -> None:
    world = started(World(policy=GATED, quality=QualityKind.CLEAR))
    world.want(v44=100)
    world.quality = None
    for _ in range(6):
        world.tick(5)
    assert world.split == {"v42": 10_000}, "v43 is gone, and v44 has not answered"
