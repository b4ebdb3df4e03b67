"""Missing, broken and tiny data: holds, says why, never advances, never rolls back."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.rollout.gateways import (
    TPOT_EDGES,
    Gateways,
    Served,
    change_canary,
    session,
    with_custom,
    with_trouble,
)

from tidewheel.crds.rolloutchoices import Metric, Mode
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.judge.findings import VerdictKind
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.readings import ArmReading, Histogram, Reading
from tidewheel.rollout.judge.settings import CustomMetric, JudgeSettings

LITERAL = JudgeSettings(mode=Mode.LIMITS)

HEALTHY = {"base": Served(14_850, errors=15), "canary": Served(150)}
FAILING = {"base": Served(14_850, errors=15), "canary": Served(150, errors=150)}


def _no_series(reading: Reading) -> Reading:
    return replace(reading, canary=ArmReading(gateways={}))


def _no_base(reading: Reading) -> Reading:
    return replace(reading, base=ArmReading(gateways={}))


def _one_gateway_unscraped(reading: Reading) -> Reading:
    gateways = dict(reading.canary.gateways)
    del gateways[sorted(gateways)[0]]
    return replace(reading, canary=replace(reading.canary, gateways=gateways))


def _tpot(reading: Reading, cumulative: tuple[float, ...], edges: tuple[float, ...] = TPOT_EDGES) -> Reading:
    ttft = next(iter(reading.canary.gateways.values())).latency[Latency.TTFT]
    return change_canary(reading, latency={Latency.TPOT: Histogram(edges, cumulative), Latency.TTFT: ttft})


BROKEN: dict[str, tuple[str, Callable[[Reading], Reading]]] = {
    "canary: result [] (AR#1466)": ("Empty", _no_series),
    "base: result []": ("BaseMissing", _no_base),
    "requests NaN (FL#1098)": ("NotANumber", lambda r: change_canary(r, requests=float("nan"))),
    "errors +Inf (FLP#1095)": ("NotANumber", lambda r: change_canary(r, errors=float("inf"))),
    "a bucket is NaN": ("NotANumber", lambda r: _tpot(r, (float("nan"),) * (len(TPOT_EDGES) + 1))),
    "missing +Inf bucket": ("MetricMismatch", lambda r: _tpot(r, (0.0,) * len(TPOT_EDGES))),
    "no buckets": ("Empty", lambda r: change_canary(r, latency={})),
    "buckets fall over le (PM#13020)": (
        "InconsistentBuckets",
        lambda r: _tpot(r, (*range(len(TPOT_EDGES)), 1.0)),
    ),
    "other layout (cerberus#1546)": (
        "MetricMismatch",
        lambda r: _tpot(r, (1.0, 1.0, 1.0), (0.01, 0.02)),
    ),
    "samples 30 s old": ("Stale", lambda r: replace(r, sample_age=30.0)),
    "sample age NaN": ("Stale", lambda r: replace(r, sample_age=float("nan"))),
    "Prometheus 30 s behind (own)": ("ClockSkew", lambda r: replace(r, clock_skew=30.0)),
    "Prometheus 30 s ahead": ("ClockSkew", lambda r: replace(r, clock_skew=-30.0)),
    "one gateway not scraped": ("Partial", _one_gateway_unscraped),
    "HTTP 503": ("ProviderError", lambda r: with_trouble(r, "ProviderError")),
    "timeout": ("ProviderError", lambda r: with_trouble(r, "ProviderError")),
    "warnings: partial response": ("Partial", lambda r: with_trouble(r, "Partial")),
    "several series where one is due": ("SeveralSeries", lambda r: with_trouble(r, "SeveralSeries", "errors")),
}


@pytest.mark.parametrize(("reason", "broken"), BROKEN.values(), ids=BROKEN.keys())
def test_unusable_data_holds_even_while_everything_fails(reason: str, broken: Callable[[Reading], Reading]) -> None:
    judge, gateways = session(), Gateways()
    judge.observe(gateways.reading())
    for _ in range(3):
        gateways.serve(**FAILING)
        verdict = judge.observe(broken(gateways.reading()))
        assert verdict is not None
        assert verdict.kind is VerdictKind.BLIND
        assert verdict.reason == reason
        assert verdict.stops_clock
        assert verdict.credit is None
        assert verdict.message.startswith("cannot judge")


def test_no_traffic_on_both_arms_is_blind() -> None:
    """AR#180"""
    judge, gateways = session(), Gateways()
    judge.observe(gateways.reading())
    gateways.serve(base=Served(0), canary=Served(0))
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (VerdictKind.BLIND, "NoTraffic")


def test_an_absent_error_series_beside_fresh_requests_means_no_errors() -> None:
    """AR#3503"""
    judge, gateways = session(), Gateways()
    judge.observe(change_canary(gateways.reading(), errors=None))
    gateways.serve(**HEALTHY)
    verdict = judge.observe(change_canary(gateways.reading(), errors=None))
    assert verdict is not None
    assert verdict.kind is not VerdictKind.BLIND
    errors = next(finding for finding in verdict.findings if finding.metric == Metric.ERRORS)
    assert errors.canary == 0.0


def test_after_a_blind_time_the_same_step_goes_on_with_its_evidence() -> None:
    """AR#1905: what happened meanwhile is evidence, but no bake time."""
    judge, gateways = session(), Gateways()
    judge.observe(gateways.reading())
    gateways.serve(**HEALTHY)
    seen = judge.observe(gateways.reading())
    for _ in range(6):
        gateways.serve(**HEALTHY)
        judge.observe(with_trouble(gateways.reading(), "ProviderError"))
    gateways.serve(**HEALTHY)
    verdict = judge.observe(gateways.reading())
    assert seen is not None
    assert verdict is not None
    assert verdict.kind is not VerdictKind.BLIND
    assert verdict.canary_requests == pytest.approx(8 * 150)
    assert verdict.credit is None
    gateways.serve(**HEALTHY)
    after = judge.observe(gateways.reading())
    assert after is not None
    assert after.credit == (gateways.at - 30, gateways.at)


def test_a_block_with_a_blind_look_in_it_is_no_bake_time() -> None:
    """C10: judged, for the counts are there, but the clock stood still."""
    judge, gateways = session(), Gateways()
    judge.observe(gateways.reading())
    gateways.serve(**HEALTHY, seconds=15)
    judge.observe(with_trouble(gateways.reading(), "Partial"))
    gateways.serve(**HEALTHY, seconds=15)
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert verdict.kind is not VerdictKind.BLIND
    assert verdict.canary_requests == pytest.approx(300)
    assert verdict.credit is None


def test_looks_before_the_weight_has_settled_are_skipped() -> None:
    """AR#291, ARP#4864: two scrapes after the last gateway has confirmed."""
    judge, gateways = session(), Gateways(at=985.0)
    assert judge.observe(gateways.reading()) is None
    gateways.serve(**FAILING, seconds=14)
    assert gateways.at < judge.first_look
    assert judge.observe(gateways.reading()) is None


def test_a_look_inside_a_block_repeats_the_last_verdict() -> None:
    judge, gateways = session(), Gateways()
    judge.observe(gateways.reading())
    gateways.serve(**HEALTHY)
    first = judge.observe(gateways.reading())
    for _ in range(5):
        gateways.serve(**HEALTHY, seconds=5)
        assert judge.observe(gateways.reading()) is first


def test_a_restarted_gateway_is_no_spike() -> None:
    """PM#13903, istio.io#10101: increases per series, never below 0."""
    judge, gateways = session(), Gateways()
    judge.observe(gateways.reading())
    gateways.restart("gw-a")
    gateways.serve(**HEALTHY)
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert verdict.canary_requests == pytest.approx(150)
    assert verdict.base_requests == pytest.approx(14_850)


def test_a_gateway_that_is_new_counts_from_its_birth() -> None:
    """PM#3886, #10466, #12967: errors before the first scrape are errors."""
    judge, gateways = session(), Gateways()
    judge.observe(gateways.reading())
    gateways.names = ("gw-a", "gw-b", "gw-c")
    gateways.serve(base=Served(15_000), canary=Served(150, errors=15))
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    errors = next(finding for finding in verdict.findings if finding.metric == Metric.ERRORS)
    assert errors.canary == pytest.approx(0.1)


def test_buckets_that_fall_without_a_restart_are_blind() -> None:
    judge, gateways = session(), Gateways()
    gateways.serve(**HEALTHY)
    judge.observe(gateways.reading())
    gateways.serve(**HEALTHY)
    verdict = judge.observe(_tpot(gateways.reading(), tuple(map(float, range(len(TPOT_EDGES) + 1)))))
    assert verdict is not None
    assert verdict.kind is VerdictKind.BLIND


def test_a_tail_beyond_the_last_bucket_within_the_limit_is_off_scale() -> None:
    """VLP#15202: ">edge" counts as over any limit below the edge, else nothing can be said."""
    top = TPOT_EDGES[-1]
    judge, gateways = session(JudgeSettings(metrics=(Metric.TPOT,))), Gateways()
    judge.observe(gateways.reading())
    for _ in range(8):
        gateways.serve(base=Served(14_850, tpot=top / 1.05), canary=Served(700, tpot=top * 1.5))
        verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (VerdictKind.BLIND, "OffScale")
    within = Gateways()
    other = session(JudgeSettings(metrics=(Metric.TPOT,)))
    other.observe(within.reading())
    for _ in range(8):
        within.serve(base=Served(14_850), canary=Served(700, tpot=top * 1.5))
        verdict = other.observe(within.reading())
    assert verdict is not None
    assert verdict.kind is VerdictKind.BREACH
    assert "over" in verdict.message


def test_literal_limits_are_off_scale_too() -> None:
    top = TPOT_EDGES[-1]
    judge, gateways = session(replace(LITERAL, metrics=(Metric.TPOT,))), Gateways()
    judge.observe(gateways.reading())
    gateways.serve(base=Served(14_850, tpot=top / 1.05), canary=Served(700, tpot=top * 1.5))
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (VerdictKind.BLIND, "OffScale")


def test_nothing_that_cannot_be_placed_hides_a_failing_version() -> None:
    top = TPOT_EDGES[-1]
    judge, gateways = session(), Gateways()
    judge.observe(gateways.reading())
    for _ in range(8):
        gateways.serve(base=Served(14_850, tpot=top / 1.05), canary=Served(700, errors=350, tpot=top * 1.5))
        verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (VerdictKind.BREACH, "ErrorRate")


def test_a_blind_dry_run_metric_does_not_blind_the_rest() -> None:
    judge, gateways = session(JudgeSettings(dry_run=frozenset({Metric.STALLS}))), Gateways()
    judge.observe(change_canary(gateways.reading(), stalls=None))
    gateways.serve(**HEALTHY)
    verdict = judge.observe(change_canary(gateways.reading(), stalls=None))
    assert verdict is not None
    assert verdict.kind is not VerdictKind.BLIND


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")], ids=str)
def test_a_user_metric_without_a_number_is_blind(value: float | None) -> None:
    metric = CustomMetric(name="refusals", query='x{version="{{version}}"}', limit=1.0, dry_run=False)
    judge, gateways = session(JudgeSettings(custom=(metric,))), Gateways()
    judge.observe(with_custom(gateways.reading(), refusals=(0.0, 0.0)))
    gateways.serve(**HEALTHY)
    verdict = judge.observe(with_custom(gateways.reading(), refusals=(0.0, value)))
    assert verdict is not None
    assert verdict.kind is VerdictKind.BLIND
    assert "refusals" in verdict.message


def test_base_without_a_history_is_blind_until_it_has_one() -> None:
    judge, gateways = session(), Gateways()
    gateways.restart("gw-a")
    gateways.restart("gw-b")
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert verdict.reason == "NoHistory"
    gateways.serve(**HEALTHY)
    judge.observe(gateways.reading())
    gateways.serve(**HEALTHY)
    verdict = judge.observe(gateways.reading())
    assert verdict is not None
    assert verdict.kind is not VerdictKind.BLIND


def test_a_block_of_fewer_than_four_scrapes_is_refused() -> None:
    """Own: a range of 20 s at a scrape every 15 s has one or two samples."""
    with pytest.raises(SettingsError, match=r"at least 4 scrapes: set it to 60"):
        JudgeSettings(block_seconds=20, scrape_seconds=15)


def test_a_user_metric_that_reads_the_same_number_for_both_arms_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"\{\{version\}\}"):
        CustomMetric(name="x", query="up", limit=1)
