"""``spec.rollout`` as people write it."""

import pytest

from tidewheel.crds.rolloutchoices import Metric, Mode, OnCapacity, Patience
from tidewheel.rollout.configuration import configuration
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.machine.policy import Step


def test_the_example_of_the_design_is_read() -> None:
    read = configuration(
        {
            "steps": [{"basisPoints": 10}, {"percent": 1}, {"percent": 25, "bakeSeconds": 60}, {"percent": 100}],
            "bakeSeconds": 600,
            "judge": {"mode": "evidence", "maxErrorRateIncrease": 0.005, "maxLatencyRatio": 1.2, "dryRun": ["stalls"]},
            "keepPreviousSeconds": 900,
            "onCapacity": "Replace",
            "onThin": "advance",
            "changeWindows": [{"start": "09:00", "end": "17:00", "timeZone": "Europe/Berlin", "days": ["Mon"]}],
        }
    )
    assert read.policy.steps == (Step(10), Step(100), Step(2500, 60), Step(10_000))
    assert read.policy.on_thin is Patience.ADVANCE
    assert read.judge.mode is Mode.EVIDENCE
    assert read.judge.dry_run == {Metric.STALLS}
    assert read.on_capacity is OnCapacity.REPLACE
    assert len(read.policy.change_windows) == 1


def test_absent_means_at_once() -> None:
    assert configuration({}).policy.steps == ()


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        ({"judge": {"maxErrorRate": 0.1}}, "maxErrorRate is not known; there are mode"),
        ({"judge": {"mode": "hope"}}, "'hope' is none of evidence, limits, observe"),
        ({"steps": [{"percent": 1, "basisPoints": 100}]}, r"rollout.steps\[0\]: say either"),
        ({"steps": [{"percent": 1, "bake": 5}]}, "bake is not known"),
        ({"bake": 5}, "bake is not known"),
        ({"judge": {"custom": [{"name": "x", "query": "up", "limit": 1}]}}, r"\{\{version\}\}"),
        ({"judge": {"metrics": ["happiness"]}}, "none of errors"),
        ({"changeWindows": [{"start": "09:00", "end": "10:00", "zone": "UTC"}]}, "zone is not known"),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused_with_what_is(rollout: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        configuration(rollout)
