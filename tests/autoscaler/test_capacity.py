"""Capacity of a replica, its cold start, its ETA, its sources."""

import pytest

from tidewheel.autoscaler.capacity import (
    CapacitySource,
    EngineReport,
    Shape,
    StepTimes,
    capacity_from_report,
    capacity_from_shape,
)
from tidewheel.autoscaler.cold_start import ColdStart, StartPath, lead_seconds, nearest_rank, start_eta
from tidewheel.autoscaler.eta import Eta, queue_eta, relief_eta
from tidewheel.autoscaler.readings import Reporters
from tidewheel.autoscaler.sources import Source, SourceKind, allocate, next_source
from tidewheel.autoscaler.units import Demand, Mix, Unit, demand_from_rates, with_open_requests

STEPS = StepTimes(base=0.005, per_prefill_token=2e-5, per_decode=5e-5, per_context_token=0.0)
REPORT = EngineReport(kv_tokens=100_000, max_num_seqs=256, steps=STEPS)


def test_the_engines_fit_gives_the_streams_that_stay_within_the_slo() -> None:
    found = capacity_from_report(REPORT, tpot_seconds=0.01, context_tokens=100, prompt_per_output=0)
    assert found is not None
    assert found.max_streams == 100  # (10 - 5) ms / 0.05 ms
    assert found.decode == pytest.approx(0.85 * 100 / 0.01)
    assert found.source is CapacitySource.SELF_BENCHMARK


def test_prefill_that_runs_between_decodes_takes_from_them() -> None:
    alone, mixed = (
        capacity_from_report(REPORT, tpot_seconds=0.01, context_tokens=100, prompt_per_output=share)
        for share in (0.0, 5.0)
    )
    assert alone is not None
    assert mixed is not None
    assert mixed.decode < 0.5 * alone.decode
    assert mixed.prefill == pytest.approx(5 * mixed.decode)


@pytest.mark.parametrize("report", [EngineReport(kv_tokens=1e5, max_num_seqs=8, steps=None)])
def test_without_a_fit_nothing_is_claimed(report: EngineReport) -> None:
    assert capacity_from_report(report, tpot_seconds=0.05, context_tokens=100, prompt_per_output=1) is None


def test_memory_limits_where_time_does_not() -> None:
    report = EngineReport(kv_tokens=1_000, max_num_seqs=256, steps=STEPS)
    found = capacity_from_report(report, tpot_seconds=0.05, context_tokens=500, prompt_per_output=1)
    assert found is not None
    assert found.max_streams == 2


def test_the_prior_is_half_of_the_roofline() -> None:
    shape = Shape(
        weight_bytes=140e9, kv_bytes_per_token=327_680, memory_bytes=320e9, bandwidth=13.4e12, flops=4 * 989e12
    )
    found = capacity_from_shape(shape, tpot_seconds=0.05, context_tokens=2_000)
    assert found.source is CapacitySource.PRIOR
    assert 3_000 < found.decode < 6_000
    assert found.max_streams == 225
    assert found.prefill == pytest.approx(0.5 * 4 * 989e12 / 140e9)


def test_blocks_follow_from_arrivals_residence_and_length() -> None:
    mix = Mix(prompt_tokens=1_600, output_tokens=500, output_tokens_p90=1_000, cached_share=0.5)
    demand = demand_from_rates(prompt_rate=16_000, output_rate=5_000, mix=mix, tpot_seconds=0.03, ttft_seconds=1.0)
    assert demand.prefill == 8_000
    assert demand.kv_blocks == pytest.approx(10 * 31 * (2_100 / 16 + 1))
    assert demand.of(Unit.DECODE) == 5_000


def test_open_requests_are_demand_before_their_tokens_are_counted() -> None:
    mix = Mix(prompt_tokens=160, output_tokens=320)
    found = with_open_requests(Demand(prefill=1, decode=10, kv_blocks=1), 20, mix=mix, tpot_seconds=0.05)
    assert (found.decode, found.kv_blocks) == (400, 20 * 21)
    busy = Demand(prefill=1, decode=900, kv_blocks=9_000)
    assert with_open_requests(busy, 20, mix=mix, tpot_seconds=0.05) == busy


def _starts(*seconds: float) -> list[ColdStart]:
    return [ColdStart(total=value, path=StartPath.COLD) for value in seconds]


def test_the_lead_is_the_p95_of_measured_starts_and_the_prior_before() -> None:
    assert lead_seconds(_starts(), prior_seconds=180) == 180
    assert lead_seconds(_starts(20), prior_seconds=180) == 180
    assert lead_seconds(_starts(*range(1, 21)), prior_seconds=180) == 19
    assert nearest_rank([3, 1, 2], 0.5) == 2


def test_eta_counts_replicas_on_their_way_and_says_what_it_does_not_know() -> None:
    alone = queue_eta(ahead=1_000, ready_rate=10, arriving=[])
    helped = queue_eta(ahead=1_000, ready_rate=10, arriving=[(30, 60, 40.0)])
    assert alone.p50 == pytest.approx(100)
    assert helped.p50 == pytest.approx(30 + (1_000 - 300) / 50)
    assert helped.p90 is not None
    assert helped.p90 > helped.p50
    assert queue_eta(ahead=1_000, ready_rate=0, arriving=[]).p50 is None
    assert queue_eta(ahead=1_000, ready_rate=0, arriving=[(30, 60, 10)]).p50 == pytest.approx(130)
    assert queue_eta(ahead=0, ready_rate=0, arriving=[]).p50 == 0


def test_relief_is_when_enough_replicas_are_ready_and_unknown_where_too_few_are_on_their_way() -> None:
    arriving = [(60.0, 90.0), (30.0, 100.0)]
    assert relief_eta(need=3, ready=3, arriving=[]) == Eta(0.0, 0.0)
    assert relief_eta(need=3.2, ready=3, arriving=arriving) == Eta(30.0, 90.0)
    assert relief_eta(need=5, ready=3, arriving=arriving) == Eta(60.0, 100.0)
    assert relief_eta(need=5.1, ready=3, arriving=arriving) == Eta(None, None)


def test_a_start_is_as_likely_shorter_as_longer_than_its_p50() -> None:
    assert start_eta(_starts(*range(1, 21)), prior_seconds=180) == (10, 18)
    assert start_eta(_starts(20), prior_seconds=180) == (180, 360)


SOURCES = [
    Source(name="spot", kind=SourceKind.SPOT, max_replicas=50),
    Source(name="demand", kind=SourceKind.ON_DEMAND, max_replicas=4),
    Source(name="bought", kind=SourceKind.RESERVED, max_replicas=6),
]


def test_reserved_first_then_on_demand_then_spot_and_never_spot_alone() -> None:
    assert allocate(5, SOURCES).counts == {"bought": 5}
    assert allocate(12, SOURCES).counts == {"bought": 6, "demand": 4, "spot": 2}
    thirty = allocate(30, SOURCES)
    assert thirty.counts == {"bought": 6, "demand": 4, "spot": 15}
    assert thirty.shortfall == 5
    assert allocate(4, SOURCES[:1]).counts == {"spot": 2}


def test_the_next_replica_goes_where_one_is_missing() -> None:
    assert next_source({"bought": 6}, 8, SOURCES) == "demand"
    assert next_source({}, 3, SOURCES) == "bought"
    assert next_source({}, 3, []) is None


def test_half_the_gateways_are_not_half_the_demand_until_they_have_been_gone_for_long() -> None:
    reporters = Reporters(window_seconds=600)
    assert reporters.check(0, 4).believed
    doubt = reporters.check(30, 2)
    assert not doubt.believed
    assert doubt.reason == "only 2 of 4 gateways report"
    assert not reporters.check(60, 0).believed
    assert reporters.check(700, 2).believed
