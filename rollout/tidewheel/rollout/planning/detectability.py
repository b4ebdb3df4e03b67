"""What a rollout will be able to see, said before it starts.

A rate that is g times base's is seen with n canary requests when ``n p (g ln g - g + 1) >= ln(needed odds) + margin``,
p being base's share of bad requests: the expected evidence of n requests against a much larger base. Harm is ruled out
when ``n (p - q + q ln(q / p)) >= ln(clear odds) + margin``, q being the canary's rate and p the harmful one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log, sqrt
from typing import Final

from tidewheel.rollout.judge.blocks import Counts
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.quantiles import landmarks
from tidewheel.rollout.judge.settings import BUCKET_FACTOR, JudgeSettings
from tidewheel.rollout.judge.steps import harm_to_rule_out
from tidewheel.rollout.machine.policy import PlannedStep, RolloutPolicy

_MARGIN: Final = 4.0
"""Natural logarithm: half of the luck, and the price of not knowing effect and noise beforehand."""
_LEAST_ERRORS: Final = 1e-4
_SLOWDOWNS: Final[tuple[float, ...]] = tuple(BUCKET_FACTOR ** (step / 2) for step in range(2, 78))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFacts:
    """Base as it has been lately: requests a second of both arms, error rate, latency counts per bucket."""

    requests_per_second: float
    error_rate: float = 0.0
    latency: Mapping[Latency, tuple[tuple[float, ...], Counts]] = field(default_factory=dict)
    """Edges and counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutlook:
    """One step. None for what it cannot see at any size."""

    number: int
    canary_share: float
    bake_seconds: float
    canary_requests: float
    smallest_error_increase: float | None
    smallest_slowdown: Mapping[Latency, float | None]
    seconds: float
    """Expected, for a healthy canary: the bake, or what ruling out this step's harm takes; infinite without traffic."""

    @property
    def sees_nothing(self) -> bool:
        """In its bake, at any size of harm."""
        return self.smallest_error_increase is None and not any(self.smallest_slowdown.values())

    def in_words(self) -> str:
        """One line for `tidewheel plan`."""
        errors = f"+{self.smallest_error_increase:.2%} errors" if self.smallest_error_increase else "no error rate"
        slow = ", ".join(
            f"{kind.value.upper()} {ratio:.2f}x" if ratio else f"no {kind.value.upper()} slowdown"
            for kind, ratio in self.smallest_slowdown.items()
        )
        took = "never ends" if self.seconds == inf else f"about {self.seconds / 60:.0f} min"
        return (
            f"step {self.number} at {self.canary_share:.3%}: {self.canary_requests:,.0f} canary requests in "
            f"{self.bake_seconds / 60:.0f} min, sees {errors}{', ' + slow if slow else ''}; {took}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The whole rollout before it starts. ``refusal``: why it would be judged for nothing; empty: it can be judged."""

    steps: tuple[StepOutlook, ...]
    warnings: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def seconds(self) -> float:
        """Expected time to promotion of a healthy version."""
        return sum(step.seconds for step in self.steps)


def outlook(
    steps: Sequence[PlannedStep], traffic: TrafficFacts, *, settings: JudgeSettings, policy: RolloutPolicy
) -> Outlook:
    """What each judged step can tell, and whether the policy can see its own limits at all."""
    judged = [step for step in steps if step.judged]
    needed = settings.needed_odds(len(judged))
    looks = tuple(
        _outlook(number, step, traffic=traffic, settings=settings, needed=needed)
        for number, step in enumerate(judged, start=1)
    )
    warnings = tuple(_warnings(looks, settings, policy))
    refusal = ""
    if judged and not any(
        _sees_limits(step, traffic, settings=settings, policy=policy, needed=needed) for step in judged
    ):
        refusal = (
            f"at {traffic.requests_per_second:g} requests/s no step can see its own limits within "
            f"{policy.max_hold_seconds / 3600:g} h: make steps larger, bake longer, or judge.mode: observe"
        )
    return Outlook(steps=looks, warnings=warnings, refusal=refusal)


def smallest_ratio(requests: float, rate: float, needed_odds: float) -> float | None:
    """The smallest multiple of ``rate`` that so many canary requests show; None if even certainty would not do."""
    if requests <= 0 or rate <= 0:
        return None
    enough = log(needed_odds) + _MARGIN
    low, high = 1.0, 1 / rate
    if _evidence(requests, rate, high) < enough:
        return None
    for _ in range(60):
        middle = sqrt(low * high)
        if _evidence(requests, rate, middle) >= enough:
            high = middle
        else:
            low = middle
    return high


def smallest_slowdown(
    requests: float, edges: Sequence[float], *, counts: Counts, needed_odds: float, grace: float = BUCKET_FACTOR
) -> float | None:
    """The smallest factor on latency that so many canary requests show, given base's own distribution."""
    for factor in _SLOWDOWNS:
        for edge in landmarks(counts):
            rate = _share_over(edges, counts, edges[edge])
            slowed = _share_over(edges, counts, edges[edge] * grace / factor)
            if rate and slowed > rate and _evidence(requests, rate, slowed / rate) >= log(needed_odds) + _MARGIN:
                return factor
    return None


def _evidence(requests: float, rate: float, ratio: float) -> float:
    return requests * rate * (ratio * log(ratio) - ratio + 1)


def _outlook(
    number: int, step: PlannedStep, *, traffic: TrafficFacts, settings: JudgeSettings, needed: float
) -> StepOutlook:
    rate = traffic.requests_per_second * step.canary_share
    requests = rate * step.bake_seconds
    slowdowns = {
        kind: smallest_slowdown(requests, edges, counts=counts, needed_odds=needed)
        for kind, (edges, counts) in traffic.latency.items()
    }
    wanted = _requests_to_clear(step, traffic, settings)
    return StepOutlook(
        number=number,
        canary_share=step.canary_share,
        bake_seconds=step.bake_seconds,
        canary_requests=requests,
        smallest_error_increase=_smallest_increase(requests, traffic, needed),
        smallest_slowdown=slowdowns,
        seconds=max(step.bake_seconds, wanted / rate if rate else inf),
    )


def _smallest_increase(requests: float, traffic: TrafficFacts, needed: float) -> float | None:
    base = max(traffic.error_rate, _LEAST_ERRORS)
    ratio = smallest_ratio(requests, base, needed)
    return (ratio - 1) * base if ratio is not None else None


def _requests_to_clear(step: PlannedStep, traffic: TrafficFacts, settings: JudgeSettings) -> float:
    harm = harm_to_rule_out(step.canary_share, settings)
    target = log(settings.clear_odds) + _MARGIN / 2
    base = max(traffic.error_rate, _LEAST_ERRORS)
    wanted = [target / _relief(base + harm.error_rate_increase, base)]
    for edges, counts in traffic.latency.values():
        gains = [
            _relief(
                _share_over(edges, counts, edges[edge]), _share_over(edges, counts, edges[edge] * harm.latency_ratio)
            )
            for edge in landmarks(counts)
        ]
        wanted.append(target / max(gains, default=0.0) if max(gains, default=0.0) > 0 else inf)
    return max(wanted)


def _relief(harmful: float, actual: float) -> float:
    """Expected evidence per request that the rate is ``actual`` and not ``harmful``."""
    if harmful <= actual:
        return 0.0
    return harmful - actual + (actual * log(actual / harmful) if actual else 0.0)


def _share_over(edges: Sequence[float], counts: Counts, value: float) -> float:
    """Share of observations above any value, interpolated on the logarithm inside its bucket."""
    total, over = sum(counts), 0.0
    for bucket, count in enumerate(counts):
        low = edges[bucket - 1] if bucket else edges[0] / 2
        high = edges[bucket] if bucket < len(edges) else inf
        if low >= value:
            over += count
        elif high > value and high < inf:
            over += count * log(high / value) / log(high / low)
    return over / total if total else 0.0


def _sees_limits(
    step: PlannedStep, traffic: TrafficFacts, *, settings: JudgeSettings, policy: RolloutPolicy, needed: float
) -> bool:
    """Within the longest hold, not only the bake."""
    requests = traffic.requests_per_second * step.canary_share * (step.bake_seconds + policy.max_hold_seconds)
    increase = _smallest_increase(requests, traffic, needed)
    if increase is None or increase > settings.max_error_rate_increase * 2:
        return False
    slowdowns = [
        smallest_slowdown(requests, edges, counts=counts, needed_odds=needed)
        for edges, counts in traffic.latency.values()
    ]
    return all(slowdown is not None and slowdown <= settings.max_latency_ratio * 1.5 for slowdown in slowdowns)


def _warnings(looks: Sequence[StepOutlook], settings: JudgeSettings, policy: RolloutPolicy) -> list[str]:
    found = []
    for look in looks:
        if look.seconds > look.bake_seconds + policy.max_hold_seconds:
            found.append(f"step {look.number} cannot rule out its harm before it is given up: {look.in_words()}")
        elif look.seconds > 1.5 * look.bake_seconds:
            found.append(f"step {look.number} will take longer than its bake: {look.in_words()}")
        if look.sees_nothing:
            found.append(
                f"step {look.number} at {look.canary_share:.3%} can tell nothing in its bake: "
                f"{look.canary_requests:,.0f} canary requests in {look.bake_seconds / 60:.0f} min show no error rate "
                "and no slowdown, however large; make the step larger or bake longer"
            )
        elif look.smallest_error_increase is None:
            found.append(f"step {look.number} gets too few requests to see any error rate in its bake")
    if looks and (looks[0].smallest_error_increase or 1.0) > 10 * settings.max_error_rate_increase:
        found.append("the first step only catches disasters at this traffic; that is what it is for")
    return found
