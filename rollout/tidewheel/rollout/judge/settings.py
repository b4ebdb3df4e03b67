"""What the judge is told. Every default is the guide's; rates and shares are fractions, times are seconds."""

from dataclasses import dataclass
from typing import Final

from tidewheel.crds.rolloutchoices import Direction, Metric, Mode
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.judge.metrics import ALL_METRICS, LITERAL_METRICS

ARM_PLACEHOLDER: Final = "{{version}}"
BUCKET_FACTOR: Final = 1.2 ** (1 / 3)
"""Distance of the gateways' histogram edges: a slowdown of 1.2 is three buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetric:
    """A user's own metric: PromQL with ``{{version}}`` where an arm's version goes, a limit and a direction.

    ``relative_to_base``: the limit is a ratio to base's value instead of a value. New ones only watch until
    ``dry_run`` is switched off.
    """

    name: str
    query: str
    limit: float
    direction: Direction = Direction.HIGHER_IS_WORSE
    relative_to_base: bool = False
    dry_run: bool = True

    def __post_init__(self) -> None:
        if ARM_PLACEHOLDER not in self.query:
            raise SettingsError(
                f"judge.metrics[{self.name}].query does not contain {ARM_PLACEHOLDER}, so both arms would read the "
                "same number; put it where the version's label goes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """The limits that matter, and how sure one must be to act on them."""

    mode: Mode = Mode.EVIDENCE
    metrics: tuple[Metric, ...] | None = None
    """None: those of the mode."""
    dry_run: frozenset[Metric] = frozenset()
    custom: tuple[CustomMetric, ...] = ()

    max_error_rate_increase: float = 0.005
    max_latency_ratio: float = 1.20
    max_share_over_slo: float = 0.01
    """1 %: the 99th percentile is over the SLO."""
    max_stall_rate_increase: float = 0.005
    any_quantile: bool | None = None
    """Hold p50, p90 and p95 to the latency limit too, not only p99. None: not in `limits`, where rules are literal."""

    false_alarm_rate: float = 0.01
    """Chance that a healthy version is rolled back by noise, over a whole rollout: all metrics, steps and looks."""
    clear_odds: float = 20.0
    """Evidence against this step's harm level that lets the step end."""
    min_latency_blocks: int = 4
    """Latency acts after this many blocks, unless it is ``gross_latency_ratio`` or worse."""

    block_seconds: float = 30.0
    scrape_seconds: float = 5.0
    settle_scrapes: int = 2
    max_age_scrapes: int = 2
    max_clock_skew: float = 5.0
    replica_spread: float = 0.05
    """How much replicas of one version differ in latency, for minutes at a time: standard deviation of the logarithm.
    One canary replica that is two of these slower is no slower version."""
    cache_warm_seconds: float = 300.0
    """TTFT counts only once the canary's prefix caches had this long to fill."""

    load_ratio: tuple[float, float] = (0.7, 1.4)
    """Requests in flight per replica, canary by base, inside which latencies are comparable."""
    gross_latency_ratio: float = 2.0
    """The latency ratio that a difference in load cannot explain."""
    share_tolerance: float = 1.5
    share_slack: float = 0.02
    """How far the observed share may stray from the weight: by this ratio and, for heavy tenants stick to one version,
    by this share of traffic."""
    mix_tolerance: float = 1.5
    """How far the share of long prompts may differ between the arms, as a ratio."""

    window_seconds: float = 300.0
    """`limits`: how far back a look reaches."""
    crossings: int = 1
    """`limits`: looks in a row over a limit that roll back. 1 is the literal rule."""
    min_samples: int = 0
    """`limits`: canary requests in the window below which the verdict is THIN."""

    def __post_init__(self) -> None:
        if self.block_seconds < 4 * self.scrape_seconds:
            raise SettingsError(
                f"judge.blockSeconds is {self.block_seconds:g} s, scrapes come every {self.scrape_seconds:g} s; a "
                f"block needs at least 4 scrapes: set it to {4 * self.scrape_seconds:g} or more"
            )
        if not 0 < self.false_alarm_rate < 1:
            raise SettingsError("judge.falseAlarmRate must lie between 0 and 1, for example 0.01")
        if self.max_latency_ratio < BUCKET_FACTOR:
            raise SettingsError(
                f"judge.maxLatencyRatio is {self.max_latency_ratio:g}; histogram buckets are {BUCKET_FACTOR:.3f} "
                "apart, less cannot be seen"
            )
        names = [metric.name for metric in self.custom]
        if len(set(names)) != len(names) or set(names) & set(Metric):
            raise SettingsError("judge.metrics: every metric needs a name of its own, and none of the built-in ones")

    @property
    def judged(self) -> tuple[Metric, ...]:
        """The built-in metrics that are computed, in the order in which a limit is checked."""
        if self.metrics is not None:
            return tuple(metric for metric in ALL_METRICS if metric in self.metrics)
        return LITERAL_METRICS if self.mode is Mode.LIMITS else ALL_METRICS

    @property
    def every_quantile(self) -> bool:
        """Whether more than p99 is held to the latency limit."""
        return self.mode is not Mode.LIMITS if self.any_quantile is None else self.any_quantile

    @property
    def acting(self) -> int:
        """How many metrics may roll back: the false alarm rate is divided among them."""
        own = sum(1 for metric in self.judged if metric not in self.dry_run)
        return own + sum(1 for metric in self.custom if not metric.dry_run)

    def needed_odds(self, judged_steps: int) -> float:
        """Evidence that acts: every acting metric of every step gets an equal part of the false alarm rate.

        Bonferroni over tests that each hold at any number of looks, so it holds under every dependence between them.
        """
        return max(1, self.acting) * max(1, judged_steps) / self.false_alarm_rate
