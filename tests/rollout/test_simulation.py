"""Whole rollouts on drawn traffic: a cut of ``bench.rollout_simulation``, seeded; the full numbers are in docs."""

from dataclasses import replace

import pytest
from bench.rollout.traffic import Fault, Noise
from bench.rollout.trials import Result, Trial, run, run_many
from bench.rollout_simulation import FAULTS, NOISES

from tidewheel.crds.rolloutchoices import Mode
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.machine.policy import RolloutPolicy, Step
from tidewheel.rollout.machine.state import Outcome

BAKE_SECONDS = 4 * 600.0


def rolled_back(results: list[Result]) -> float:
    return sum(result.rolled_back for result in results) / len(results)


def test_v43_is_caught_at_one_percent_of_the_small_platform() -> None:
    """DESIGN section 12: 1,000 requests/s, 150 GPUs, p99 TPOT 41 ms against an SLO of 30 ms."""
    for result in run_many(Trial(rate=1000, replicas=150, fault=Fault(tpot=41 / 22)), range(10)):
        assert result.rolled_back
        assert result.reason in {"TpotOverSlo", "TpotRatio"}
        assert result.share == pytest.approx(0.01)
        assert result.seconds <= 180
        assert result.exposed <= 2000


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_every_fault_is_caught_before_everybody_has_it(fault: Fault) -> None:
    for result in run_many(Trial(rate=1000, replicas=150, fault=fault), range(2)):
        assert result.rolled_back
        assert result.share <= max(fault.from_share, 0.05)


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())
def test_a_healthy_version_is_promoted_in_about_its_bake_time(noise: Noise) -> None:
    for result in run_many(Trial(rate=50, noise=noise), range(2)):
        assert result.outcome is Outcome.PROMOTED
        assert result.seconds <= (1.5 if noise == Noise() else 2.5) * BAKE_SECONDS


def test_literal_limits_roll_healthy_versions_back() -> None:
    """Guide section 5 measured 78 % at 50 requests/s; this is why `evidence` is the default."""
    limits = JudgeSettings(mode=Mode.LIMITS)
    assert rolled_back(run_many(Trial(rate=50, settings=limits), range(8))) > 0.5


def test_the_same_seed_is_the_same_rollout() -> None:
    trial = Trial(rate=50, fault=Fault(errors=0.02))
    assert run(trial, 7) == run(trial, 7)


@pytest.mark.parametrize(
    "trial",
    [
        Trial(rate=50, noise=NOISES["heavy-tenants"]),
        Trial(rate=50, fault=Fault(errors=0.02)),
        Trial(rate=50, fault=Fault(tpot=1.3)),
    ],
    ids=["healthy", "errors", "held"],
)
def test_asking_the_judge_only_where_it_matters_changes_no_rollout(trial: Trial) -> None:
    steps = tuple(map(Step, (500, 5000, 10_000)))
    trial = replace(trial, policy=RolloutPolicy(steps=steps, bake_seconds=300), longest_seconds=2400)
    assert run(trial, 3) == run(replace(trial, every_look=True), 3)


@pytest.mark.long
@pytest.mark.parametrize("rate", [50.0, 200.0], ids=lambda rate: f"{rate:g}rps")
@pytest.mark.parametrize(("name", "noise"), NOISES.items(), ids=NOISES.keys())
def test_false_alarms_stay_within_their_stated_rate(name: str, noise: Noise, rate: float) -> None:
    """At most 1 % where requests are independent, 2 % where they are not, over 1,000 rollouts."""
    results = run_many(Trial(rate=rate, noise=noise), range(1000))
    assert rolled_back(results) <= (0.01 if name == "independent" else 0.02)
    done = sorted(result.seconds for result in results if result.outcome is Outcome.PROMOTED)
    assert done[len(done) // 2] <= 1.5 * BAKE_SECONDS


@pytest.mark.long
@pytest.mark.parametrize(
    "fault", [Fault(tpot=1.5, ttft=1.5), Fault(errors=0.02)], ids=["latency 1.5x", "errors +2 points"]
)
def test_at_fifty_requests_a_second_faults_are_caught(fault: Fault) -> None:
    assert rolled_back(run_many(Trial(rate=50, fault=fault), range(200))) >= 0.95
