"""How a version has been served lately: asked once for each rollout, for the plan before its start."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf, isfinite
from typing import Final

from tidewheel.clients.prometheus import Prometheus, PrometheusError, Sample
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.planning.rollouts.evidence import TrafficOrder
from tidewheel.rollout.judge.blocks import Counts
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.planning.detectability import TrafficFacts

_LOG: Final = logging.getLogger(__name__)
_SECONDS: Final = 3600
_RETRY_SECONDS: Final = 15.0


def traffic_queries(key: ModelKey, version: str, *, window_seconds: float) -> Mapping[str, str]:
    """Rates and increases over the window; a model younger than it is averaged over the whole of it."""
    who = f'namespace="{key.namespace}",model="{key.model}",version="{version}"'
    recent = f"{max(60.0, 4 * window_seconds):.0f}s"
    return {
        "rate": f"sum(rate(tidewheel_requests_total{{{who}}}[{recent}]))",
        "requests": f"sum(increase(tidewheel_requests_total{{{who}}}[{_SECONDS}s]))",
        "errors": f"sum(increase(tidewheel_request_errors_total{{{who}}}[{_SECONDS}s]))",
        **{
            kind.value: f"sum by (le) (increase(tidewheel_{kind.value}_seconds_bucket{{{who}}}[{_SECONDS}s]))"
            for kind in Latency
        },
    }


def traffic_facts(answers: Mapping[str, Sequence[Sample]]) -> TrafficFacts:
    """What is not there is none: no request means that nothing can be detected, and the plan says so."""
    requests = _number(answers.get("requests", ()))
    histograms = {kind: _histogram(answers.get(kind.value, ())) for kind in Latency}
    return TrafficFacts(
        requests_per_second=_number(answers.get("rate", ())),
        error_rate=_number(answers.get("errors", ())) / requests if requests else 0.0,
        latency={kind: found for kind, found in histograms.items() if found is not None},
    )


class TrafficDesk:
    """Asks until it has an answer; kept as long as the order stands."""

    def __init__(
        self, prometheus: Prometheus | None, *, now: Callable[[], float], on_known: Callable[[ModelKey], None]
    ) -> None:
        self._prometheus = prometheus
        self._now = now
        self._on_known = on_known
        self._tasks: dict[ModelKey, tuple[TrafficOrder, asyncio.Task[None]]] = {}
        self._facts: dict[ModelKey, TrafficFacts] = {}

    def facts(self, key: ModelKey) -> TrafficFacts | None:
        """None: not known yet."""
        return self._facts.get(key)

    def follow(self, key: ModelKey, order: TrafficOrder | None) -> None:
        """Find this out; None: nothing, and what was found is forgotten."""
        asked = self._tasks.get(key)
        if asked is not None and asked[0] == order:
            return
        if asked is not None:
            asked[1].cancel()
            del self._tasks[key]
        self._facts.pop(key, None)
        if order is not None and self._prometheus is not None:
            task = asyncio.create_task(self._ask(key, order, self._prometheus), name=f"traffic of {key}")
            self._tasks[key] = (order, task)

    async def close(self) -> None:
        """Ask no more."""
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: ModelKey, order: TrafficOrder, prometheus: Prometheus) -> None:
        asked = traffic_queries(key, order.version, window_seconds=4 * order.scrape_seconds)
        while True:
            try:
                answers = await asyncio.gather(*(prometheus.instant(q, at=self._now()) for q in asked.values()))
            except PrometheusError as error:
                _LOG.info("%s: the plan before the start waits for Prometheus: %s", key, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            found = {name: answer.samples for name, answer in zip(asked, answers, strict=True)}
            self._facts[key] = traffic_facts(found)
            self._on_known(key)
            return


def _number(samples: Sequence[Sample]) -> float:
    value = samples[0].value if samples else 0.0
    return value if isfinite(value) else 0.0


def _histogram(samples: Sequence[Sample]) -> tuple[tuple[float, ...], Counts] | None:
    try:
        cumulative = sorted((float(sample.labels["le"]), sample.value) for sample in samples)
    except (KeyError, ValueError):
        return None
    edges, counts = [edge for edge, _ in cumulative], [count for _, count in cumulative]
    # Anything but one count per edge, the last for +Inf, is no histogram; a plan without latency is better than none.
    if len(edges) < 3 or len(set(edges)) != len(edges) or edges[-1] != inf:
        return None
    if not all(map(isfinite, counts)) or counts[-1] <= 0:
        return None
    per_bucket = (counts[0], *(max(0.0, high - low) for low, high in pairwise(counts)))
    return tuple(edges[:-1]), per_bucket
