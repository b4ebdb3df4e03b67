"""What makes a reading unusable. No data is never a pass and never a rollback."""

from collections.abc import Iterable, Iterator
from math import isfinite
from operator import gt, lt

from tidewheel.crds.rolloutchoices import Metric
from tidewheel.rollout.judge.metrics import RATIO_OF, SLO_OF, WORDS, Latency
from tidewheel.rollout.judge.readings import ArmReading, Counters, Histogram, Reading, Trouble
from tidewheel.rollout.judge.settings import JudgeSettings


def troubles_of(reading: Reading, settings: JudgeSettings) -> tuple[Trouble, ...]:
    """Everything wrong with a reading, worst first; empty: it can be used."""
    required = {metric.value for metric in settings.judged if metric not in settings.dry_run}
    required |= {metric.name for metric in settings.custom if not metric.dry_run}
    found = [
        *reading.troubles,
        *_of_provider(reading, settings),
        *_of_arm(reading, "canary", counters=reading.canary, settings=settings),
        *_of_arm(reading, "base", counters=reading.base, settings=settings),
        *_of_layout(reading),
        *_of_custom(reading, settings),
    ]
    return tuple(trouble for trouble in found if trouble.metric is None or trouble.metric in required)


def without_traffic(requests: float) -> Trouble | None:
    """Nobody asked either arm for anything."""
    return None if requests > 0 else Trouble("NoTraffic", "neither version got a request")


def _of_provider(reading: Reading, settings: JudgeSettings) -> Iterator[Trouble]:
    if abs(reading.clock_skew) > settings.max_clock_skew:
        yield Trouble(
            "ClockSkew",
            f"the metrics provider's clock is {abs(reading.clock_skew):.0f} s "
            f"{'behind' if reading.clock_skew > 0 else 'ahead of'} this one",
        )
    allowed = settings.max_age_scrapes * settings.scrape_seconds
    if not isfinite(reading.sample_age) or reading.sample_age > allowed:
        yield Trouble("Stale", f"the newest samples are {reading.sample_age:.0f} s old, more than {allowed:.0f} s")


def _of_arm(reading: Reading, arm: str, *, counters: ArmReading, settings: JudgeSettings) -> Iterator[Trouble]:
    present = {name for name, gateway in counters.gateways.items() if gateway.requests is not None}
    if not present:
        reason = "Empty" if arm == "canary" else "BaseMissing"
        yield Trouble(reason, f"there is no request series of the {arm}; gateways make it at 0 before any traffic")
        return
    missing = sorted(reading.expected_gateways - present)
    if missing:
        yield Trouble(
            "Partial", f"the {arm}'s series of {len(missing)} gateway(s) are missing: {', '.join(missing[:3])}"
        )
    for name, gateway in counters.gateways.items():
        yield from _of_gateway(f"the {arm}'s series of gateway {name}", gateway, settings)


def _of_gateway(where: str, gateway: Counters, settings: JudgeSettings) -> Iterator[Trouble]:
    scalars = [
        ("requests", gateway.requests, None),
        ("errors", gateway.errors, Metric.ERRORS.value),
        ("stalls", gateway.stalls, Metric.STALLS.value),
        *((f"over_slo of {kind.value}", value, SLO_OF[kind].value) for kind, value in gateway.over_slo.items()),
    ]
    for name, value, metric in scalars:
        if value is not None and not (isfinite(value) and value >= 0):
            yield Trouble("NotANumber", f"{where}: {name} is {value}", metric)
    if gateway.stalls is None:
        yield Trouble("Empty", f"{where}: no series for stalls", Metric.STALLS.value)
    for kind in Latency:
        if kind not in gateway.over_slo:
            yield Trouble("Empty", f"{where}: no series for {WORDS[SLO_OF[kind]]}", SLO_OF[kind].value)
        histogram = gateway.latency.get(kind)
        problem = Trouble("Empty", "no buckets") if histogram is None else _of_histogram(histogram)
        if problem is not None:
            for metric in (RATIO_OF[kind], SLO_OF[kind]):
                yield Trouble(problem.reason, f"{where}, {kind.value}: {problem.message}", metric.value)


def _of_histogram(histogram: Histogram) -> Trouble | None:
    edges, cumulative = histogram.edges, histogram.cumulative
    if not edges or len(cumulative) != len(edges) + 1:
        return Trouble("MetricMismatch", f"{len(edges)} edges and {len(cumulative)} counts; the +Inf bucket is due too")
    if not all(map(isfinite, cumulative)) or min(cumulative) < 0:
        return Trouble("NotANumber", "a bucket's count is not a number of 0 or more")
    if not all(map(lt, edges, edges[1:])):
        return Trouble("MetricMismatch", "edges do not rise")
    if any(map(gt, cumulative, cumulative[1:])):
        return Trouble("InconsistentBuckets", "cumulative counts fall from one edge to the next")
    return None


def _of_layout(reading: Reading) -> Iterator[Trouble]:
    """Both arms by the same instrument: never merge buckets by position."""
    for kind in Latency:
        layouts = {histogram.edges for histogram in _histograms(reading, kind)}
        if len(layouts) > 1:
            for metric in (RATIO_OF[kind], SLO_OF[kind]):
                yield Trouble(
                    "MetricMismatch", f"{kind.value} has {len(layouts)} different bucket layouts", metric.value
                )


def _histograms(reading: Reading, kind: Latency) -> Iterable[Histogram]:
    for arm in (reading.base, reading.canary):
        for gateway in arm.gateways.values():
            if kind in gateway.latency:
                yield gateway.latency[kind]


def _of_custom(reading: Reading, settings: JudgeSettings) -> Iterator[Trouble]:
    for metric in settings.custom:
        got = reading.custom.get(metric.name)
        for arm, value in (("canary", got.canary if got else None), ("base", got.base if got else None)):
            if arm == "base" and not metric.relative_to_base:
                continue
            if value is None or not isfinite(value):
                yield Trouble("Empty", f"metric {metric.name} gave {value} for the {arm}", metric.name)
