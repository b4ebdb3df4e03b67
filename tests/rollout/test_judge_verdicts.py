"""What the judge says of real differences, of none, and of arms that cannot be compared."""

from dataclasses import replace
from math import log

import pytest
from tests.rollout.gateways import TTFT_EDGES, Gateways, Served, session, with_custom

from tidewheel.crds.rolloutchoices import Direction, Metric, Mode
from tidewheel.rollout.judge.findings import Finding, Standing, Verdict, VerdictKind, odds
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.readings import ArmReading, Histogram, Reading
from tidewheel.rollout.judge.report import report
from tidewheel.rollout.judge.settings import CustomMetric, JudgeSettings

LITERAL = JudgeSettings(mode=Mode.LIMITS)

BASE = Served(14_850, errors=15, stalls=1)
CANARY = Served(150, errors=0.15, stalls=0.01)


def judged(
    canary: Served,
    *,
    base: Served = BASE,
    settings: JudgeSettings | None = None,
    blocks: int = 20,
    share: float = 0.01,
    load: tuple[float, float] = (10.0, 10.0),
) -> tuple[Verdict, int]:
    """The verdict after so many blocks, or at the first breach, and its number."""
    judge, gateways = session(settings, share=share), Gateways(load=load)
    judge.observe(gateways.reading())
    verdict: Verdict | None = None
    seen = 0
    while seen < blocks and not (verdict is not None and verdict.rolls_back):
        gateways.serve(base=base, canary=canary)
        verdict = judge.observe(gateways.reading())
        seen += 1
    assert verdict is not None
    return verdict, seen


def finding(verdict: Verdict, metric: str) -> Finding:
    return next(finding for finding in verdict.findings if finding.metric == metric)


def test_a_healthy_canary_is_clear_within_its_bake() -> None:
    verdict, _ = judged(CANARY)
    assert verdict.kind is VerdictKind.CLEAR
    assert "ruled out" in verdict.message
    assert verdict.credit is not None


@pytest.mark.parametrize(
    ("canary", "reason", "most_blocks"),
    [
        pytest.param(Served(150, errors=150), "ErrorRate", 2, id="everything fails"),
        pytest.param(Served(150, errors=6), "ErrorRate", 10, id="errors 4 %"),
        pytest.param(replace(CANARY, tpot=CANARY.tpot * 41 / 22), "TpotOverSlo", 6, id="v43: p99 TPOT 41 ms of 30"),
        pytest.param(replace(CANARY, tpot=CANARY.tpot * 1.3), "TpotRatio", 20, id="TPOT 1.3x, within its SLO"),
        pytest.param(replace(CANARY, ttft=CANARY.ttft * 1.5), "TtftRatio", 20, id="TTFT only"),
        pytest.param(replace(CANARY, stalls=7.5), "Stalls", 10, id="stalls only"),
    ],
)
def test_a_fault_is_caught_in_the_first_step_for_its_own_reason(canary: Served, reason: str, most_blocks: int) -> None:
    verdict, block = judged(canary)
    assert verdict.kind is VerdictKind.BREACH
    assert verdict.reason == reason
    assert block <= most_blocks
    assert "not by chance" in verdict.message


def test_one_error_in_thirty_is_a_suspicion() -> None:
    """kortix-ai/suna#3403: over the limit, but chance does that."""
    verdict, _ = judged(Served(30, errors=1), base=Served(2970, errors=3), blocks=1)
    assert verdict.kind is VerdictKind.SUSPECT
    errors = finding(verdict, Metric.ERRORS)
    assert 1 < odds(errors.evidence) < 30
    assert errors.is_over_limit
    assert "evidence" in verdict.message


def test_errors_where_base_has_none_are_a_breach() -> None:
    """KY#377, spinnaker#5622: 12 of 400 against 0 of 20,000."""
    verdict, _ = judged(Served(400, errors=12), base=Served(20_000), blocks=1)
    assert (verdict.kind, verdict.reason) == (VerdictKind.BREACH, "ErrorRate")


def test_latency_below_the_gross_ratio_needs_four_blocks() -> None:
    slow, gross = (replace(Served(15_000), tpot=BASE.tpot * factor) for factor in (1.4, 2.5))
    settings = JudgeSettings(metrics=(Metric.TPOT,))
    even = replace(BASE, requests=15_000)
    assert judged(slow, base=even, settings=settings, share=0.5)[1] >= 4
    assert judged(gross, base=even, settings=settings, share=0.5)[1] <= 3


def test_a_difference_within_the_limit_is_none_however_certain() -> None:
    """KY#744: estimate, limit and evidence are told apart."""
    verdict, _ = judged(Served(15_000, errors=45), base=Served(15_000, errors=15), share=0.5, blocks=20)
    errors = finding(verdict, Metric.ERRORS)
    assert odds(errors.evidence) > 1000
    assert errors.estimate == pytest.approx(0.002)
    assert errors.standing is not Standing.BREACH
    assert not verdict.rolls_back


def test_every_verdict_has_numbers_for_both_arms() -> None:
    """KY#521"""
    verdict, _ = judged(CANARY, blocks=3)
    assert {item.metric for item in verdict.findings} == {metric.value for metric in Metric}
    for item in verdict.findings:
        assert item.canary_samples == pytest.approx(450)
        assert item.base_samples == pytest.approx(3 * 14_850)
        assert item.needed == pytest.approx(log(6 * 4 / 0.01))
        assert item.words


def test_few_samples_in_the_top_bucket_are_counted_not_interpolated() -> None:
    """PM#7970: three slow requests of 150 are no p99."""
    slow = replace(CANARY, requests=3, tpot=1.0)
    judge, gateways = session(JudgeSettings(metrics=(Metric.TPOT,))), Gateways()
    judge.observe(gateways.reading())
    gateways.serve(base=BASE, canary=replace(CANARY, requests=147), seconds=0)
    gateways.serve(base=Served(0), canary=slow)
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert not verdict.rolls_back


def test_both_over_their_slo_is_no_evidence_against_the_canary() -> None:
    """C32"""
    slow = Served(14_850, tpot=0.028)
    verdict, _ = judged(replace(slow, requests=150), base=slow, blocks=20)
    assert (verdict.kind, verdict.reason) == (VerdictKind.SKEWED, "BaseAlsoBreaching")
    assert verdict.stops_clock


def test_another_share_than_the_weight_is_skewed() -> None:
    """C19"""
    verdict, _ = judged(Served(1500), base=Served(13_500), share=0.01, blocks=6)
    assert (verdict.kind, verdict.reason) == (VerdictKind.SKEWED, "Share")


def test_longer_prompts_are_skew_and_no_slow_canary() -> None:
    canary = replace(CANARY, prompt=2500.0, ttft=CANARY.ttft * 4)
    verdict, _ = judged(canary, blocks=30)
    assert (verdict.kind, verdict.reason) == (VerdictKind.SKEWED, "Mix")
    assert finding(verdict, Metric.TTFT).dry_run


def test_another_load_narrows_the_comparison_and_does_not_stop_the_clock() -> None:
    """One replica at 1 % is loaded otherwise than base's: only gross latency, errors and the SLO count."""
    slower = replace(CANARY, tpot=CANARY.tpot * 1.3, ttft=CANARY.ttft * 1.3)
    verdict, _ = judged(slower, load=(10.0, 25.0), blocks=20)
    assert not verdict.rolls_back
    assert verdict.credit is not None
    assert "2x only" in verdict.narrowed
    gross = replace(CANARY, ttft=CANARY.ttft * 3)
    verdict, _ = judged(gross, load=(10.0, 25.0), settings=JudgeSettings(metrics=(Metric.TTFT,)))
    assert (verdict.kind, verdict.reason) == (VerdictKind.BREACH, "TtftRatio")
    failing, _ = judged(Served(150, errors=15), load=(10.0, 25.0))
    assert failing.reason == "ErrorRate"


def test_ttft_counts_only_once_caches_are_warm() -> None:
    judge, gateways = session(), Gateways(at=1000.0)
    cold = replace(judge.step, rollout_started_at=995.0)
    judge = type(judge)(JudgeSettings(), cold)
    judge.observe(gateways.reading())
    for _ in range(9):
        gateways.serve(base=BASE, canary=replace(CANARY, ttft=CANARY.ttft * 3))
        verdict = judge.observe(gateways.reading())
        assert verdict is not None
        assert not verdict.rolls_back
    for _ in range(20):
        gateways.serve(base=BASE, canary=replace(CANARY, ttft=CANARY.ttft * 3))
        verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert verdict.reason in {"TtftRatio", "TtftOverSlo"}


def with_ttft(arm: ArmReading, histogram: Histogram) -> ArmReading:
    gateways = {
        name: replace(counters, latency={**counters.latency, Latency.TTFT: histogram})
        for name, counters in arm.gateways.items()
    }
    return replace(arm, gateways=gateways)


def test_a_latency_that_nobody_has_is_left_out_and_said() -> None:
    """Where nobody streams there is no TTFT; that is no reason to be blind for ever."""
    empty = Histogram(TTFT_EDGES, (0.0,) * (len(TTFT_EDGES) + 1))

    def without_ttft(reading: Reading) -> Reading:
        return replace(reading, base=with_ttft(reading.base, empty), canary=with_ttft(reading.canary, empty))

    judge, gateways = session(), Gateways()
    judge.observe(without_ttft(gateways.reading()))
    for _ in range(10):
        gateways.serve(base=BASE, canary=CANARY)
        verdict = judge.observe(without_ttft(gateways.reading()))
    assert verdict is not None
    assert verdict.kind is VerdictKind.CLEAR
    assert "TTFT is not judged" in verdict.narrowed
    assert not [item for item in verdict.findings if item.metric.startswith("ttft")]


def test_a_dry_run_metric_is_computed_and_never_acts() -> None:
    """C34"""
    verdict, _ = judged(replace(CANARY, stalls=30), settings=JudgeSettings(dry_run=frozenset({Metric.STALLS})))
    stalls = finding(verdict, Metric.STALLS)
    assert stalls.standing is Standing.BREACH
    assert stalls.dry_run
    assert verdict.kind is VerdictKind.CLEAR


def test_observe_never_acts_and_time_alone_advances() -> None:
    verdict, _ = judged(Served(150, errors=75), settings=JudgeSettings(mode=Mode.OBSERVE))
    assert verdict.kind is VerdictKind.CLEAR
    assert finding(verdict, Metric.ERRORS).standing is Standing.BREACH


@pytest.mark.parametrize(
    ("metric", "values", "rolls_back"),
    [
        pytest.param(CustomMetric(name="m", query="{{version}}", limit=5, dry_run=False), (1.0, 9.0), True, id="above"),
        pytest.param(
            CustomMetric(name="m", query="{{version}}", limit=5, dry_run=False), (1.0, 5.0), False, id="at it"
        ),
        pytest.param(
            CustomMetric(
                name="m",
                query="{{version}}",
                limit=0.9,
                direction=Direction.LOWER_IS_WORSE,
                relative_to_base=True,
                dry_run=False,
            ),
            (100.0, 80.0),
            True,
            id="below base",
        ),
        pytest.param(CustomMetric(name="m", query="{{version}}", limit=5), (1.0, 9.0), False, id="new ones watch"),
    ],
)
def test_a_user_metric_beyond_its_limit_for_long_enough(
    metric: CustomMetric, values: tuple[float, float], rolls_back: bool
) -> None:
    judge, gateways = session(JudgeSettings(custom=(metric,))), Gateways()
    judge.observe(with_custom(gateways.reading(), m=values))
    for block in range(20):
        gateways.serve(base=BASE, canary=CANARY)
        verdict = judge.observe(with_custom(gateways.reading(), m=values))
        assert verdict is not None
        assert not (verdict.rolls_back and block < 8), "too early to be sure"
    assert verdict.rolls_back is rolls_back


def test_the_false_alarm_rate_is_divided_among_what_may_act() -> None:
    everything = JudgeSettings()
    assert everything.needed_odds(4) == pytest.approx(6 * 4 / 0.01)
    quieter = JudgeSettings(dry_run=frozenset({Metric.STALLS, Metric.TTFT}))
    assert quieter.needed_odds(4) == pytest.approx(4 * 4 / 0.01)
    watching = JudgeSettings(custom=(CustomMetric(name="m", query="{{version}}", limit=1),))
    assert watching.needed_odds(4) == everything.needed_odds(4)


def test_a_person_reads_what_would_trip_it_and_when_it_can_advance() -> None:
    verdict, _ = judged(Served(30, errors=1), base=Served(2970, errors=3), blocks=1)
    lines = report(verdict, step=1, steps=5, share=0.01, baked=30, bake=600)
    assert lines[0] == "step 1/5  1.00%  bake 30s/10m00s   verdict SUSPECT (hold, clock runs)"
    assert any("errors canary 1/30 (3.33 %), base 3/2970 (0.101 %), limit +0.5 %" in line for line in lines)
    assert any(line.startswith(" why: over the limit") for line in lines)
    clear, _ = judged(CANARY, blocks=10)
    assert "can end in 5m00s at the earliest" in report(clear, step=1, steps=5, share=0.01, baked=300, bake=600)[-1]


def test_limits_are_the_literal_rules_in_their_order() -> None:
    worse = replace(CANARY, errors=1.5, tpot=CANARY.tpot * 1.9)
    verdict, block = judged(worse, settings=LITERAL)
    assert (verdict.kind, verdict.reason, block) == (VerdictKind.BREACH, "ErrorRate", 1)
    slow, block = judged(replace(CANARY, tpot=CANARY.tpot * 1.9), settings=LITERAL)
    assert (slow.reason, block) == ("TpotOverSlo", 1)
    ratio, block = judged(replace(CANARY, tpot=CANARY.tpot * 1.25), settings=LITERAL)
    assert (ratio.reason, block) == ("TpotRatio", 1)
    ttft, _ = judged(replace(CANARY, ttft=CANARY.ttft * 3), settings=LITERAL)
    assert ttft.kind is VerdictKind.CLEAR, "TTFT only if asked"
    asked = replace(LITERAL, metrics=tuple(Metric))
    assert judged(replace(CANARY, ttft=CANARY.ttft * 1.3), settings=asked)[0].reason == "TtftRatio"


def test_limits_look_at_p99_alone_unless_asked() -> None:
    assert not LITERAL.every_quantile
    assert replace(LITERAL, any_quantile=True).every_quantile
    assert JudgeSettings().every_quantile


def test_limits_are_literal_about_prompts_too() -> None:
    longer = replace(CANARY, prompt=2500.0, ttft=CANARY.ttft * 3)
    verdict, _ = judged(longer, settings=replace(LITERAL, metrics=(Metric.TTFT_SLO,)))
    assert verdict.reason == "TtftOverSlo"


def test_limits_are_strict() -> None:
    at_limit, _ = judged(Served(1000, errors=6), base=Served(1000, errors=1), share=0.5, settings=LITERAL)
    assert at_limit.kind is VerdictKind.CLEAR
    over, _ = judged(Served(1000, errors=6.1), base=Served(1000, errors=1), share=0.5, settings=LITERAL)
    assert over.kind is VerdictKind.BREACH


def test_limits_hold_the_slo_whatever_base_does() -> None:
    slow = Served(14_850, tpot=0.028)
    verdict, _ = judged(replace(slow, requests=150), base=slow, settings=LITERAL)
    assert (verdict.kind, verdict.reason) == (VerdictKind.BREACH, "TpotOverSlo")


def test_limits_look_back_five_minutes_only() -> None:
    judge, gateways = session(LITERAL), Gateways()
    judge.observe(gateways.reading())
    settings = replace(LITERAL, crossings=3)
    judge = session(settings)
    judge.observe(gateways.reading())
    gateways.serve(base=BASE, canary=Served(150, errors=5))
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert verdict.kind is VerdictKind.SUSPECT, "one look of three"
    for _ in range(10):
        gateways.serve(base=BASE, canary=replace(CANARY, requests=1500))
        verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert verdict.kind is VerdictKind.CLEAR
    assert finding(verdict, Metric.ERRORS).canary_samples == pytest.approx(15_000)


def test_limits_are_thin_only_if_samples_are_asked_for() -> None:
    settings = replace(LITERAL, min_samples=200)
    verdict, _ = judged(Served(30, errors=1), base=Served(2970, errors=3), settings=settings, blocks=2)
    assert verdict.kind is VerdictKind.THIN
