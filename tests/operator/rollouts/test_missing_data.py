"""Missing and wrong data in every form, through the reader that asks over HTTP: it holds, and says why.

The canary fails every request all along. Whoever believed a broken answer would roll back, or, where the errors are
what is missing, advance.
"""

import asyncio
import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from tests.operator.rollouts.breaking_provider import Answering, Gateway, Provider, Sample, serving

from tidewheel.clients.prometheus import Answer, Prometheus, PrometheusError
from tidewheel.operator.rollouts.queries import Arms, custom_query, queries
from tidewheel.operator.rollouts.reading import Look, read
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.judge.session import StepSession
from tidewheel.rollout.judge.settings import CustomMetric, JudgeSettings
from tidewheel.rollout.judge.steps import StepContext

START = 1_000_000.0
PATIENT, IMPATIENT = 20.0, 0.2
"""Seconds to wait for an answer: where one comes, and where none does."""
ARMS = Arms(namespace="shop", model="chat", base="v42", canary="v43")
GATEWAYS = {"a": "10.0.0.1", "b": "10.0.0.2"}
REFUSALS = CustomMetric(name="refusals", query='tidewheel_in_flight{version="{{version}}"}', limit=5.0, dry_run=False)
STALLED = threading.Event()


@dataclass
class Step:
    """A step under judgement, asked over HTTP."""

    provider: Provider
    prometheus: Prometheus
    session: StepSession
    at: float = START

    def block(self, *, canary_errors: float = 1.0, slow: float = 1.0) -> Verdict | None:
        """Half a minute of traffic, and a look."""
        for gateway in GATEWAYS:
            self.provider.of(gateway, "v42").serve(700)
            self.provider.of(gateway, "v43").serve(40, error_share=canary_errors, slow=slow)
        self.at += 30
        self.provider.at = self.at
        return self.look()

    def look(self) -> Verdict | None:
        return asyncio.run(self._look())

    async def _look(self) -> Verdict | None:
        asked = queries(ARMS)
        answers = await asyncio.gather(*(self._ask(query) for query in asked.values()))
        custom = {}
        for metric in self.session.settings.custom:
            base, canary = [await self._ask(custom_query(metric, version)) for version in ("v42", "v43")]
            custom[metric.name] = (base, canary)
        look = Look(
            at=self.at,
            arms=ARMS,
            answers=dict(zip(asked, answers, strict=True)),
            gateways=GATEWAYS,
            ready={"v42": 2, "v43": 2},
            custom=custom,
        )
        return self.session.observe(read(look))

    async def _ask(self, query: str) -> Answer | PrometheusError:
        try:
            return await self.prometheus.instant(query, at=self.at)
        except PrometheusError as error:
            return error


def begun(url: str, provider: Provider, **settings: object) -> Step:
    """Base has a history, the canary's series are there at 0, as gateways make them."""
    context = StepContext(
        rollout_id="r1",
        step=0,
        judged_steps=4,
        canary_share=0.05,
        confirmed_at=START,
        rollout_started_at=START - 600,
        canary_replicas=2,
    )
    session = StepSession(replace(JudgeSettings(), **settings), context)  # type: ignore[arg-type]
    for gateway in GATEWAYS:
        provider.of(gateway, "v42").serve(5000)
        provider.of(gateway, "v43")
    return Step(provider, Prometheus(url, timeout_seconds=PATIENT), session)


@pytest.fixture
def step() -> Iterator[Step]:
    provider = Provider()
    STALLED.clear()
    with serving(provider) as url:
        made = begun(url, provider)
        made.block()
        yield made
        STALLED.set()
        made.prometheus.close()


def only(metric: str, change: Callable[[list[Sample]], list[Sample]]) -> Callable[[str, list[Sample]], list[Sample]]:
    """Breaks the answers about one metric."""
    return lambda query, samples: change(samples) if metric in query and "timestamp(" not in query else samples


def of(version: str, value: str) -> Callable[[list[Sample]], list[Sample]]:
    def change(samples: list[Sample]) -> list[Sample]:
        return [
            {**sample, "value": [sample["value"][0], value]} if sample["metric"].get("version") == version else sample
            for sample in samples
        ]

    return change


def without(**labels: str) -> Callable[[list[Sample]], list[Sample]]:
    return lambda samples: [s for s in samples if not all(s["metric"].get(k) == v for k, v in labels.items())]


def without_label(name: str) -> Callable[[list[Sample]], list[Sample]]:
    return lambda samples: [
        {**sample, "metric": {k: v for k, v in sample["metric"].items() if k != name}} for sample in samples
    ]


def twice(samples: list[Sample]) -> list[Sample]:
    return [*samples, *({**sample, "metric": {**sample["metric"], "job": "other"}} for sample in samples)]


def falling(samples: list[Sample]) -> list[Sample]:
    """Cumulative buckets that fall towards the top (prometheus#13020)."""
    return [{**sample, "value": [0, "0"]} if sample["metric"]["le"] == "+Inf" else sample for sample in samples]


REQUESTS, ERRORS, TPOT = "requests_total", "request_errors_total", "tpot_seconds_bucket"
BROKEN_SAMPLES = {
    "the canary's requests are absent": (only(REQUESTS, without(version="v43")), "Empty"),
    "base's requests are absent": (only(REQUESTS, without(version="v42")), "BaseMissing"),
    "nothing at all": (lambda _query, _samples: [], "Empty|Stale"),
    "requests are NaN": (only(REQUESTS, of("v43", "NaN")), "NotANumber"),
    "requests are +Inf": (only(REQUESTS, of("v43", "+Inf")), "NotANumber"),
    "requests are negative": (only(REQUESTS, of("v43", "-1")), "NotANumber"),
    "errors are NaN": (only(ERRORS, of("v43", "NaN")), "NotANumber"),
    "buckets are NaN": (only(TPOT, of("v43", "NaN")), "NotANumber"),
    "a value is no number": (only(REQUESTS, of("v43", "many")), "ProviderError"),
    "several series where one is due": (only(REQUESTS, twice), "SeveralSeries"),
    "no le": (only(TPOT, without_label("le")), "MetricMismatch"),
    "no +Inf bucket": (only(TPOT, without(le="+Inf")), "MetricMismatch"),
    "buckets are absent": (only(TPOT, lambda _: []), "Empty"),
    "buckets fall": (only(TPOT, falling), "InconsistentBuckets"),
    "one gateway was not scraped": (lambda _query, samples: without(pod="b")(samples), "Partial"),
}


def status(code: int, body: bytes = b"{}") -> Callable[[Answering], bool]:
    def answer(handler: Answering) -> bool:
        handler.say(body, status=code)
        return True

    return answer


def stall(handler: Answering) -> bool:
    """It took the question, and says nothing."""
    STALLED.wait(5)
    return bool(handler)


def half(handler: Answering) -> bool:
    """Half an answer, and then nothing: the connection stays open."""
    handler.say(b'{"status": "success", "data": {"resu', length=5000)
    STALLED.wait(5)
    return True


def cut(handler: Answering) -> bool:
    """Half an answer, and the connection is closed."""
    handler.say(b'{"status": "success", "data": {"resu', length=5000)
    handler.close_connection = True
    handler.connection.shutdown(2)
    return True


ERROR = b'{"status": "error", "errorType": "execution", "error": "query processing would load too many samples"}'
BROKEN_ANSWERS = {
    "500": status(500, b"oops"),
    "503 from a proxy": status(503, b"<html>upstream</html>"),
    "422": status(422, ERROR),
    "404": status(404, b"not found"),
    "a login page": status(200, b"<html>log in</html>"),
    "another JSON": status(200, b'{"hello": []}'),
    "null": status(200, b"null"),
    "a matrix": status(
        200, b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[]}]}}'
    ),
    "no answer in time": stall,
    "half-open": half,
    "cut off": cut,
}


def assert_held(verdict: Verdict | None, reason: str) -> None:
    """BLIND and why; no time is counted; nothing moves."""
    assert verdict is not None
    assert verdict.kind is VerdictKind.BLIND, verdict.message
    assert re.fullmatch(reason, verdict.reason), (verdict.reason, verdict.message)
    assert verdict.message.startswith("cannot judge")
    assert verdict.credit is None
    assert not verdict.rolls_back


@pytest.mark.parametrize(("change", "reason"), BROKEN_SAMPLES.values(), ids=BROKEN_SAMPLES.keys())
def test_broken_samples_hold(step: Step, change: Callable[[str, list[Sample]], list[Sample]], reason: str) -> None:
    """C23, C24, C30; rows 2, 3, 15, 22."""
    step.provider.break_samples = change
    for _ in range(3):
        assert_held(step.block(), reason)
    step.provider.heal()
    assert_goes_on(step)


@pytest.mark.parametrize("answer", BROKEN_ANSWERS.values(), ids=BROKEN_ANSWERS.keys())
def test_broken_answers_hold(step: Step, answer: Callable[[Answering], bool]) -> None:
    """C23, C25: an outage holds, however long."""
    step.provider.break_answer = answer
    patient = step.prometheus
    if answer in {stall, half}:
        step.prometheus = Prometheus(patient.url, timeout_seconds=IMPATIENT)
    assert_held(step.block(), "ProviderError")
    STALLED.set()
    step.provider.heal()
    step.prometheus = patient
    assert_goes_on(step)


@pytest.mark.parametrize("seconds", [30.0, -30.0], ids=["ahead", "behind"])
def test_a_provider_with_another_clock_holds(step: Step, seconds: float) -> None:
    """C28; row 24."""
    step.provider.clock_ahead = seconds
    assert_held(step.block(), "ClockSkew")
    step.provider.heal()
    assert_goes_on(step)


def test_old_samples_hold(step: Step) -> None:
    step.provider.scraped = step.at - 60
    assert_held(step.block(), "Stale")


def test_warnings_hold_although_the_numbers_look_good(step: Step) -> None:
    """A remote read that failed leaves a part out, and says so beside the data."""
    step.provider.extra = {"warnings": ["remote_read: store b is not reachable"]}
    verdict = step.block()
    assert_held(verdict, "Partial")
    assert verdict is not None
    assert "store b is not reachable" in verdict.message


@pytest.mark.parametrize("broken", ["errors", "requests"])
def test_a_gateway_that_restarts_is_no_spike_and_no_blindness(broken: str) -> None:
    """C29; row 18: counters begin again at 0."""
    provider = Provider()
    with serving(provider) as url:
        step = begun(url, provider)
        for _ in range(4):
            step.block(canary_errors=0.0)
        for version in ("v42", "v43"):
            provider.counters["a", version] = Gateway()
        for _ in range(4):
            verdict = step.block(canary_errors=0.0)
            assert verdict is not None
            assert verdict.kind is not VerdictKind.BLIND, verdict.message
            assert not verdict.rolls_back, broken
            assert all(finding.estimate is None or math.isfinite(finding.estimate) for finding in verdict.findings)
        step.prometheus.close()


def test_absent_error_series_beside_fresh_requests_mean_no_errors(step: Step) -> None:
    """C24; row 5: a client library makes a labelled series at its first use."""
    step.provider.break_samples = only(ERRORS, lambda _: [])
    verdict = step.block()
    assert verdict is not None
    assert verdict.kind is not VerdictKind.BLIND
    (errors,) = [finding for finding in verdict.findings if finding.metric == "errors"]
    assert errors.canary == 0.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda _: [], "Empty", id="no number"),
        pytest.param(of("v43", "NaN"), "Empty", id="NaN"),
        pytest.param(lambda samples: [*samples, *samples], "SeveralSeries", id="two series"),
    ],
)
def test_a_metric_of_ones_own_without_a_number_holds(
    change: Callable[[list[Sample]], list[Sample]], reason: str
) -> None:
    """C23 for a user's PromQL."""
    provider = Provider()
    with serving(provider) as url:
        step = begun(url, provider, custom=(REFUSALS,))
        provider.break_samples = lambda query, samples: (
            change([s for s in samples if s["metric"]["version"] in query][:1])
            if "in_flight{version=" in query
            else samples
        )
        step.block()
        assert_held(step.block(), reason)
        step.prometheus.close()


def test_a_prometheus_that_is_not_there_holds() -> None:
    provider = Provider()
    with serving(provider) as url:
        pass
    step = begun(url, provider)
    assert_held(step.block(), "ProviderError")
    step.prometheus.close()


def assert_goes_on(step: Step) -> None:
    """With data the same step is judged again, and what is wrong with the canary is seen."""
    for _ in range(3):
        verdict = step.block()
    assert verdict is not None
    assert verdict.kind is VerdictKind.BREACH, verdict.message
    assert verdict.reason == "ErrorRate"
