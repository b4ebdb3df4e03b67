"""How a version has been served lately, from whatever Prometheus gives."""

from math import inf, nan

import pytest

from tidewheel.clients.prometheus import Sample
from tidewheel.operator.rollouts.traffic import traffic_facts
from tidewheel.rollout.judge.metrics import Latency


def buckets(*counts: float, les: tuple[str, ...] = ("0.01", "0.02", "+Inf")) -> list[Sample]:
    return [Sample({"le": le}, count) for le, count in zip(les, counts, strict=True)]


def number(value: float) -> list[Sample]:
    return [Sample({}, value)]


def test_rates_and_a_histogram_per_bucket() -> None:
    facts = traffic_facts({"rate": number(50), "requests": number(1000), "errors": number(5), "tpot": buckets(1, 8, 9)})
    assert (facts.requests_per_second, facts.error_rate) == (50, 0.005)
    assert facts.latency == {Latency.TPOT: ((0.01, 0.02), (1, 7, 1))}


@pytest.mark.parametrize(
    "broken",
    [
        [],
        buckets(1, 2, nan),
        buckets(0, 0, 0),
        buckets(1, 2, inf),
        [*buckets(1, 2, 3), *buckets(1, 2, 3)],
        buckets(1, 2, 3, les=("0.01", "0.02", "0.04")),
        buckets(1, les=("+Inf",)),
        buckets(1, 2, 3, les=("fast", "0.02", "+Inf")),
        [Sample({}, 1.0)],
    ],
    ids=["none", "NaN", "nothing counted", "Inf", "twice", "no +Inf", "no edge", "no number", "no le"],
)
def test_what_is_no_histogram_leaves_the_latency_out(broken: list[Sample]) -> None:
    assert traffic_facts({"rate": number(1), "tpot": broken}).latency == {}


def test_nothing_at_all_is_no_traffic() -> None:
    assert traffic_facts({}).requests_per_second == 0
