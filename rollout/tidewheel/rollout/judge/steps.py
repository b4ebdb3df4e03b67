"""What is judged in one step: which rollout, how much harm must be ruled out, at which edges arms are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, sqrt

from tidewheel.rollout.judge.blocks import Counts, add_counts
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.quantiles import landmarks
from tidewheel.rollout.judge.readings import Reading, Seconds
from tidewheel.rollout.judge.settings import BUCKET_FACTOR, JudgeSettings

_HARM_LEVELS = ((0.02, 0.05, 2.0), (0.10, 0.02, 1.5), (0.30, 0.01, 1.3))
"""Up to this share of traffic, a step must rule out this increase of the error rate and this latency ratio."""
_ENOUGH_HISTORY = 200.0
_RARE = 0.05


@dataclass(frozen=True, slots=True)
class Harm:
    """What a step must rule out before the canary gets more traffic."""

    error_rate_increase: float
    latency_ratio: float


def harm_to_rule_out(canary_share: float, settings: JudgeSettings) -> Harm:
    """The larger the share that has been exposed, the finer; never finer than the limits themselves."""
    for share, errors, ratio in _HARM_LEVELS:
        if canary_share <= share:
            return Harm(max(errors, settings.max_error_rate_increase), max(ratio, settings.max_latency_ratio))
    return Harm(settings.max_error_rate_increase, settings.max_latency_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """One step of one rollout. ``canary_share`` is of the traffic of both arms; ``slo`` in seconds, the canary's own.

    ``confirmed_at``: when the last gateway obeyed the step's weight. ``rollout_started_at``: first weight.
    """

    rollout_id: str
    step: int
    judged_steps: int
    canary_share: float
    confirmed_at: Seconds
    rollout_started_at: Seconds
    canary_replicas: int = 1
    """That the step runs with: few of them differ from base by their own luck."""
    slo: Mapping[Latency, float] = field(default_factory=dict)

    def grace(self, settings: JudgeSettings) -> float:
        """How much slower the canary may be before it counts: a bucket, and what its few replicas differ by luck."""
        return BUCKET_FACTOR * exp(2 * settings.replica_spread / sqrt(max(1, self.canary_replicas)))

    def harm(self, settings: JudgeSettings) -> Harm:
        """What this step must rule out."""
        return harm_to_rule_out(self.canary_share, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Bucket edges of the histograms, and at which of them (by number) the arms are compared."""

    edges: Mapping[Latency, tuple[float, ...]]
    landmarks: Mapping[Latency, tuple[int, ...]]
    prompt_edges: tuple[float, ...] = ()


def lay_out(reading: Reading) -> Layout | None:
    """From what base's gateways have counted so far, before the step's own data. None: not enough of it yet.

    A latency that hardly any request has (TTFT, where nobody streams) is left out; the verdict says so.
    """
    requests = sum(gateway.requests or 0.0 for gateway in reading.base.gateways.values())
    if requests < _ENOUGH_HISTORY:
        return None
    edges: dict[Latency, tuple[float, ...]] = {}
    chosen: dict[Latency, tuple[int, ...]] = {}
    for kind in Latency:
        histograms = [gateway.latency[kind] for gateway in reading.base.gateways.values() if kind in gateway.latency]
        if not histograms:
            continue
        history = add_counts(_per_bucket(histogram.cumulative) for histogram in histograms)
        if sum(history) < _RARE * requests:
            continue
        if sum(history) < _ENOUGH_HISTORY:
            return None
        edges[kind] = histograms[0].edges
        chosen[kind] = landmarks(history)
    prompts = [gateway.prompt_tokens.edges for gateway in reading.base.gateways.values() if gateway.prompt_tokens]
    return Layout(edges=edges, landmarks=chosen, prompt_edges=prompts[0] if prompts else ())


def _per_bucket(cumulative: tuple[float, ...]) -> Counts:
    return (cumulative[0], *(high - low for low, high in pairwise(cumulative)))
