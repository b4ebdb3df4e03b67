"""What people may write in ``spec.rollout`` is what the planner and the judge obey, with the defaults it says."""

from dataclasses import MISSING, fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest

from tidewheel.crds import rollout as crd
from tidewheel.crds.rolloutchoices import OnBreach
from tidewheel.crds.rolloutstatus import RolloutStatus
from tidewheel.rollout.configuration import configuration
from tidewheel.rollout.judge.settings import CustomMetric, JudgeSettings
from tidewheel.rollout.machine.policy import RolloutPolicy, Step
from tidewheel.rollout.machine.state import LastGood, Outcome, PastRollout, Phase, RolloutState, from_json, to_json
from tidewheel.rollout.quality.scoring import QualitySettings

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
POLICY_ALSO = {"keep_previous_seconds", "judge", "on_capacity"}


@pytest.mark.parametrize(
    ("record", "kind", "also"),
    [
        (crd.Judge, JudgeSettings, set()),
        (crd.CustomMetric, CustomMetric, set()),
        (crd.Rollout, RolloutPolicy, POLICY_ALSO),
        (crd.Quality, QualitySettings, set()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_setting_is_a_field_and_every_field_a_setting(record: Any, kind: Any, also: set[str]) -> None:
    assert set(record.model_fields) == {field.name for field in fields(kind)} | also


SPELT_OUT = {
    "metrics",
    "any_quantile",
    "scrape_seconds",
    "change_windows",
    "steps",
    "custom",
    "dry_run",
    "load_ratio",
    "quality",
}
SPELT_OUT |= {"min_agreement", "prompts"}


@pytest.mark.parametrize(
    ("record", "kind"), [(crd.Judge, JudgeSettings), (crd.Rollout, RolloutPolicy), (crd.Quality, QualitySettings)]
)
def test_descriptions_name_the_default_that_is_obeyed(record: Any, kind: Any) -> None:
    for setting in fields(kind):
        default = setting.default
        if setting.name in SPELT_OUT or default is MISSING:
            continue
        shown = default.value if isinstance(default, Enum) else f"{default:g}"
        assert f"Default: {shown}" in record.model_fields[setting.name].description, setting.name


def test_a_rule_as_people_write_it_is_read_by_the_planner() -> None:
    written = {
        "steps": [{"basisPoints": 10}, {"percent": 5, "bakeSeconds": 60}, {"percent": 100}],
        "bakeSeconds": 300,
        "judge": {
            "dryRun": ["stalls"],
            "loadRatio": [0.5, 2],
            "custom": [{"name": "refusals", "query": 'r{version="{{version}}"}', "limit": 3, "dryRun": False}],
        },
        "changeWindows": [{"start": "09:00", "end": "17:00", "timeZone": "Europe/Berlin", "days": ["Mon", "Fri"]}],
        "onCapacity": "Replace",
        "quality": {"onBreach": "rollback", "minAgreement": 0.5},
    }
    rule = crd.Rollout.model_validate(written)
    read = configuration(rule.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    assert read.policy.steps == (Step(10), Step(500, 60), Step(10_000))
    assert read.judge.load_ratio == (0.5, 2)
    assert not read.judge.custom[0].dry_run
    assert read.policy.quality == QualitySettings(on_breach=OnBreach.ROLLBACK, min_agreement=0.5)


def test_the_status_keeps_every_field_of_the_state() -> None:
    """zalando-incubator/kopf#308: progress that the schema prunes is progress lost."""
    state = RolloutState(
        id="r1",
        start={"v42": 10_000},
        goal={"v43": 10_000},
        base="v42",
        canary="v43",
        canary_digest="sha256:43",
        steps=5,
        started_at=NOON,
        table_generation=3,
        phase=Phase.FINISHED,
        phase_since=NOON,
        step=1,
        split={"v42": 9500, "v43": 500},
        weight_generation=4,
        bake_seconds=600.0,
        judged=True,
        canary_share=0.05,
        step_started_at=NOON,
        first_weight_at=NOON,
        confirmed_at=NOON,
        baked_seconds=90.5,
        credited_until=NOON,
        held_since=NOON,
        base_down_since=NOON,
        verdict="CLEAR",
        reason="Baking",
        message="in words",
        promoted_by="ada",
        quality="CLEAR",
        quality_message="no trait is over its limit",
        outcome=Outcome.PROMOTED,
        finished_at=NOON,
        last_good=LastGood(version="v43", digest="sha256:43"),
        history=(PastRollout(id="r0", outcome=Outcome.REJECTED, message="slow", finished_at=NOON),),
    )
    stored = to_json(state)
    assert len(stored) == len(fields(state)), "a field of the state is at a value that is not written"
    kept = RolloutStatus.model_validate(stored).to_wire()
    assert {name: kept.get(name) for name in stored} == stored
    assert from_json(kept) == state
