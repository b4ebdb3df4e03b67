"""From Prometheus' answers to a reading: what is missing or broken is a trouble, and what is there a number."""

from math import inf, nan
from typing import Any

import pytest

from tidewheel.clients.prometheus import Answer, PrometheusError, Sample
from tidewheel.operator.rollouts.queries import Arms, Series, custom_query, queries
from tidewheel.operator.rollouts.reading import Look, read
from tidewheel.rollout.judge.blindness import troubles_of
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.readings import Reading
from tidewheel.rollout.judge.settings import CustomMetric, JudgeSettings

ARMS = Arms(namespace="shop", model="chat", base="v42", canary="v43")
GATEWAYS = {"gateway-a": "10.0.0.1", "gateway-b": "10.0.0.2"}
AT = 1_000_000.0
EDGES = ("0.01", "0.02", "+Inf")


def sample(version: str, gateway: str, value: float, **labels: str) -> Sample:
    return Sample({"version": version, "pod": gateway, "instance": f"{GATEWAYS[gateway]}:9090", **labels}, value)


def everywhere(value: float, **labels: str) -> list[Sample]:
    return [sample(version, gateway, value, **labels) for version in ("v42", "v43") for gateway in GATEWAYS]


def histogram(*cumulative: float) -> Answer:
    return Answer(
        samples=tuple(s for le, count in zip(EDGES, cumulative, strict=True) for s in everywhere(count, le=le))
    )


def healthy() -> dict[Series, Answer | PrometheusError]:
    over = [*everywhere(1, metric="ttft"), *everywhere(2, metric="tpot")]
    return {
        Series.REQUESTS: Answer(samples=tuple(everywhere(100)), clock_ahead=0.2),
        Series.ERRORS: Answer(samples=tuple(everywhere(3)), clock_ahead=0.2),
        Series.STALLS: Answer(samples=tuple(everywhere(0))),
        Series.OVER_SLO: Answer(samples=tuple(over)),
        Series.TPOT: histogram(10, 90, 100),
        Series.TTFT: histogram(0, 50, 100),
        Series.PROMPT_TOKENS: histogram(20, 60, 100),
        Series.IN_FLIGHT: Answer(samples=tuple(everywhere(4))),
        Series.AGE: Answer(samples=(Sample({"version": "v42"}, AT - 3), Sample({"version": "v43"}, AT - 1))),
    }


def reading_of(*, custom: Any = None, **changes: Any) -> Reading:
    answers = {**healthy(), **{Series(name): answer for name, answer in changes.items()}}
    return read(
        Look(at=AT, arms=ARMS, answers=answers, gateways=GATEWAYS, ready={"v42": 4, "v43": 1}, custom=custom or {})
    )


def reasons(reading: Reading, **settings: Any) -> set[tuple[str, str | None]]:
    return {(trouble.reason, trouble.metric) for trouble in troubles_of(reading, JudgeSettings(**settings))}


def test_everything_there_is_a_reading_without_trouble() -> None:
    reading = reading_of()
    assert reasons(reading) == set()
    assert set(reading.canary.gateways) == set(reading.expected_gateways) == set(GATEWAYS)
    counters = next(iter(reading.canary.gateways.values()))
    assert (counters.requests, counters.errors, counters.stalls) == (100, 3, 0)
    assert counters.over_slo == {Latency.TPOT: 2, Latency.TTFT: 1}
    assert counters.latency[Latency.TPOT].edges == (0.01, 0.02)
    assert counters.latency[Latency.TPOT].cumulative == (10, 90, 100)
    assert reading.sample_age == 3
    assert reading.clock_skew == pytest.approx(-0.2)
    assert (reading.base.load_per_replica, reading.canary.load_per_replica) == (2, 8)


def test_a_gateway_is_known_by_its_address_where_the_scrape_has_no_pod_label() -> None:
    nameless = tuple(Sample({k: v for k, v in s.labels.items() if k != "pod"}, s.value) for s in everywhere(100))
    assert set(reading_of(requests=Answer(samples=nameless)).base.gateways) >= set(GATEWAYS)


ERROR = PrometheusError("http://prometheus: 503")


@pytest.mark.parametrize(
    ("changes", "reason", "metric"),
    [
        ({"requests": Answer(samples=())}, "Empty", None),
        ({"requests": ERROR}, "ProviderError", None),
        ({"errors": ERROR}, "ProviderError", "errors"),
        ({"tpot": ERROR}, "ProviderError", "tpot"),
        ({"tpot": ERROR}, "ProviderError", "tpot-slo"),
        ({"ttft": Answer(samples=())}, "Empty", "ttft"),
        ({"stalls": Answer(samples=())}, "Empty", "stalls"),
        ({"over_slo": Answer(samples=())}, "Empty", "tpot-slo"),
        ({"requests": Answer(samples=tuple(everywhere(nan)))}, "NotANumber", None),
        ({"errors": Answer(samples=tuple(everywhere(inf)))}, "NotANumber", "errors"),
        ({"tpot": histogram(nan, 1, 2)}, "NotANumber", "tpot"),
        ({"tpot": histogram(10, 5, 100)}, "InconsistentBuckets", "tpot"),
        ({"tpot": Answer(samples=tuple(everywhere(1)))}, "MetricMismatch", "tpot"),
        ({"tpot": Answer(samples=tuple(everywhere(1, le="0.01")))}, "MetricMismatch", "tpot"),
        ({"tpot": Answer(samples=tuple(everywhere(1, le="fast")))}, "MetricMismatch", "tpot"),
        ({"requests": Answer(samples=(*everywhere(1), *everywhere(1)))}, "SeveralSeries", None),
        ({"errors": Answer(samples=(*everywhere(1), *everywhere(1)))}, "SeveralSeries", "errors"),
        ({"requests": Answer(samples=tuple(everywhere(1)), warnings=("a store is away",))}, "Partial", None),
        ({"tpot": Answer(samples=histogram(1, 2, 3).samples, warnings=("partial",))}, "Partial", "tpot"),
        ({"age": Answer(samples=())}, "Stale", None),
        ({"age": ERROR}, "Stale", None),
        ({"age": Answer(samples=(Sample({"version": "v42"}, AT - 40),))}, "Stale", None),
        ({"requests": Answer(samples=tuple(everywhere(1)), clock_ahead=-30), "errors": ERROR}, "ClockSkew", None),
    ],
)
def test_broken_data_is_a_trouble_and_says_of_what(changes: dict[str, Any], reason: str, metric: str | None) -> None:
    """argoproj/argo-rollouts#1466, fluxcd/flagger#1098, prometheus/prometheus#13020."""
    assert (reason, metric) in reasons(reading_of(**changes))


def test_a_gateway_that_is_not_scraped_is_partial_data() -> None:
    """DESIGN: one gateway not scraped."""
    only_one = tuple(s for s in everywhere(100) if s.labels["pod"] == "gateway-a")
    assert ("Partial", None) in reasons(reading_of(requests=Answer(samples=only_one)))


def test_absent_errors_beside_fresh_requests_are_none() -> None:
    """argoproj/argo-rollouts#3503."""
    reading = reading_of(errors=Answer(samples=()))
    assert reasons(reading) == set()


def test_load_and_prompts_are_not_needed_to_judge() -> None:
    reading = reading_of(in_flight=ERROR, prompt_tokens=Answer(samples=(), warnings=("partial",)))
    assert reasons(reading) == set()
    assert reading.canary.load_per_replica is None


def test_an_unusable_metric_in_dry_run_blinds_nobody() -> None:
    assert reasons(reading_of(stalls=ERROR), dry_run=frozenset({"stalls"})) == set()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(samples=()), "Empty"),
        (Answer(samples=(Sample({}, nan),)), "Empty"),
        (ERROR, "ProviderError"),
        (Answer(samples=(Sample({"a": "1"}, 1.0), Sample({"a": "2"}, 2.0))), "SeveralSeries"),
        (Answer(samples=(Sample({}, 1.0),), warnings=("partial",)), "Partial"),
    ],
)
def test_a_users_metric_is_one_number_or_a_trouble(answer: Answer | PrometheusError, reason: str) -> None:
    metric = CustomMetric(name="refusals", query='x{version="{{version}}"}', limit=1, dry_run=False)
    reading = reading_of(custom={"refusals": (Answer(samples=(Sample({}, 1.0),)), answer)})
    assert (reason, "refusals") in reasons(reading, custom=(metric,))


def test_queries_name_both_versions_and_leave_pins_out() -> None:
    asked = queries(ARMS)
    assert set(asked) == set(Series)
    for series, query in asked.items():
        assert 'namespace="shop",model="chat",version=~"v42|v43"' in query, series
    assert all('cohort!="pinned"' in asked[series] for series in (Series.REQUESTS, Series.ERRORS, Series.TPOT))
    metric = CustomMetric(name="r", query='sum(r{version="{{version}}"})', limit=1)
    assert custom_query(metric, "v43") == 'sum(r{version="v43"})'
