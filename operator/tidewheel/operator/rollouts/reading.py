"""From Prometheus' answers to the judge's reading. Pure: what is wrong with the data is a trouble, never a number."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

from tidewheel.clients.prometheus import Answer, PrometheusError, Sample
from tidewheel.crds.rolloutchoices import Metric
from tidewheel.operator.rollouts.queries import GATEWAY_LABELS, Arms, Series
from tidewheel.rollout.judge.metrics import RATIO_OF, SLO_OF, Latency
from tidewheel.rollout.judge.readings import (
    ArmReading,
    Counters,
    CustomReading,
    GatewayName,
    Histogram,
    Reading,
    Trouble,
)

Answers = Mapping[Series, Answer | PrometheusError]
CustomAnswers = Mapping[str, tuple[Answer | PrometheusError, Answer | PrometheusError]]
"""By metric: base's answer and the canary's."""

_METRICS_OF = {
    Series.ERRORS: (Metric.ERRORS.value,),
    Series.STALLS: (Metric.STALLS.value,),
    Series.OVER_SLO: (SLO_OF[Latency.TPOT].value, SLO_OF[Latency.TTFT].value),
    Series.TPOT: (RATIO_OF[Latency.TPOT].value, SLO_OF[Latency.TPOT].value),
    Series.TTFT: (RATIO_OF[Latency.TTFT].value, SLO_OF[Latency.TTFT].value),
}
"""What cannot be judged without a series; the requests are needed for everything, the rest for nothing."""
_OPTIONAL = {Series.PROMPT_TOKENS, Series.IN_FLIGHT}
_LATENCIES = {Series.TPOT: Latency.TPOT, Series.TTFT: Latency.TTFT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Everything asked at one moment. ``gateways``: name of each ready gateway, and the address it is scraped at."""

    at: float
    arms: Arms
    answers: Answers
    gateways: Mapping[str, str]
    ready: Mapping[str, int] = field(default_factory=dict)
    custom: CustomAnswers = field(default_factory=dict)


def read(look: Look) -> Reading:
    """The reading; its troubles say what is missing and why."""
    troubles = list(_troubles(look.answers))
    usable = {series: answer for series, answer in look.answers.items() if isinstance(answer, Answer)}
    table = _Table(look, usable, troubles)
    custom = {name: _custom(name, pair, troubles) for name, pair in look.custom.items()}
    ahead = [answer.clock_ahead for answer in usable.values() if answer.clock_ahead is not None]
    return Reading(
        at=look.at,
        base=table.arm(look.arms.base),
        canary=table.arm(look.arms.canary),
        expected_gateways=frozenset(map(GatewayName, look.gateways)),
        sample_age=_age(look, usable.get(Series.AGE)),
        clock_skew=-min(ahead, key=abs, default=0.0),
        custom=custom,
        troubles=tuple(troubles),
    )


def _troubles(answers: Answers) -> Iterable[Trouble]:
    for series, answer in answers.items():
        if series in _OPTIONAL:
            continue
        metrics: Sequence[str | None] = _METRICS_OF.get(series) or (None,)
        if isinstance(answer, PrometheusError):
            yield from (Trouble("ProviderError", str(answer), metric) for metric in metrics)
        elif answer.warnings:
            said = "; ".join(answer.warnings)[:300]
            yield from (Trouble("Partial", f"the provider warned: {said}", metric) for metric in metrics)


class _Table:
    """Samples by version and gateway."""

    def __init__(self, look: Look, usable: Mapping[Series, Answer], troubles: list[Trouble]) -> None:
        self._addresses = {address: name for name, address in look.gateways.items()}
        self._names = set(look.gateways)
        self._ready = look.ready
        self._troubles = troubles
        self._samples: dict[tuple[Series, str], dict[GatewayName, list[Sample]]] = {}
        for series, answer in usable.items():
            # The age is of a version, not of a gateway; it would pass for one without a name.
            for sample in answer.samples if series is not Series.AGE else ():
                by_gateway = self._samples.setdefault((series, sample.labels.get("version", "")), {})
                by_gateway.setdefault(self._gateway(sample), []).append(sample)

    def arm(self, version: str) -> ArmReading:
        names = sorted({name for (_, of), found in self._samples.items() if of == version for name in found})
        return ArmReading(
            gateways={name: self._counters(version, name) for name in names},
            in_flight=self._total(Series.IN_FLIGHT, version),
            ready_replicas=self._ready.get(version),
        )

    def _gateway(self, sample: Sample) -> GatewayName:
        pod, instance = (sample.labels.get(label, "") for label in GATEWAY_LABELS)
        if pod in self._names:
            return GatewayName(pod)
        address = instance.rpartition(":")[0] or instance
        return GatewayName(self._addresses.get(address.strip("[]"), pod or instance))

    def _counters(self, version: str, name: GatewayName) -> Counters:
        over = {sample.labels.get("metric"): sample.value for sample in self._of(Series.OVER_SLO, version, name)}
        histograms = {kind: self._histogram(series, version, name) for series, kind in _LATENCIES.items()}
        return Counters(
            requests=self._number(Series.REQUESTS, version, name),
            errors=self._number(Series.ERRORS, version, name),
            stalls=self._number(Series.STALLS, version, name),
            over_slo={kind: over[kind.value] for kind in Latency if kind.value in over},
            latency={kind: histogram for kind, histogram in histograms.items() if histogram is not None},
            prompt_tokens=self._histogram(Series.PROMPT_TOKENS, version, name),
        )

    def _of(self, series: Series, version: str, name: GatewayName) -> list[Sample]:
        return self._samples.get((series, version), {}).get(name, [])

    def _number(self, series: Series, version: str, name: GatewayName) -> float | None:
        samples = self._of(series, version, name)
        if len(samples) > 1:
            self._say(
                series, "SeveralSeries", f"gateway {name} has {len(samples)} series of {series} of {version}, not one"
            )
        return samples[0].value if samples else None

    def _histogram(self, series: Series, version: str, name: GatewayName) -> Histogram | None:
        samples = self._of(series, version, name)
        if not samples:
            return None
        counts: dict[float, float] = {}
        for sample in samples:
            edge = _edge(sample.labels.get("le"))
            if edge is None or edge in counts:
                what = "twice" if edge is not None else "not a number"
                self._say(series, "MetricMismatch", f"{series} of {version}: le={sample.labels.get('le')} is {what}")
                return None
            counts[edge] = sample.value
        edges = sorted(counts)
        return Histogram(tuple(edge for edge in edges if edge != inf), tuple(counts[edge] for edge in edges))

    def _total(self, series: Series, version: str) -> float | None:
        values = [s.value for found in self._samples.get((series, version), {}).values() for s in found]
        return sum(values) if values and all(map(isfinite, values)) else None

    def _say(self, series: Series, reason: str, message: str) -> None:
        if series not in _OPTIONAL:
            self._troubles.extend(Trouble(reason, message, metric) for metric in _METRICS_OF.get(series) or (None,))


def _edge(le: str | None) -> float | None:
    try:
        return float(le) if le is not None else None
    except ValueError:
        return None


def _age(look: Look, answer: Answer | None) -> float:
    """Age of the oldest request series of either version; infinite where nothing says so, which is stale."""
    moments = [sample.value for sample in answer.samples] if answer is not None else []
    return look.at - min(moments) if moments else inf


def _custom(
    name: str, pair: tuple[Answer | PrometheusError, Answer | PrometheusError], troubles: list[Trouble]
) -> CustomReading:
    values = []
    for arm, answer in zip(("base", "canary"), pair, strict=True):
        value = None
        if isinstance(answer, PrometheusError):
            troubles.append(Trouble("ProviderError", str(answer), name))
        elif answer.warnings:
            troubles.append(Trouble("Partial", f"the provider warned: {'; '.join(answer.warnings)[:300]}", name))
        elif len(answer.samples) > 1:
            count = len(answer.samples)
            troubles.append(Trouble("SeveralSeries", f"metric {name} gave {count} series for the {arm}, not one", name))
        elif answer.samples:
            value = answer.samples[0].value
        values.append(value)
    return CustomReading(base=values[0], canary=values[1])
