"""Builders of readings: what gateways would have counted, exactly as expected instead of at random."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from math import erf, exp, log, sqrt

from tidewheel.rollout.judge.blocks import Counts
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.readings import (
    ArmReading,
    Counters,
    CustomReading,
    GatewayName,
    Histogram,
    Reading,
    Trouble,
)
from tidewheel.rollout.judge.session import StepSession
from tidewheel.rollout.judge.settings import BUCKET_FACTOR, JudgeSettings
from tidewheel.rollout.judge.steps import StepContext

TPOT_EDGES = tuple(0.002 * BUCKET_FACTOR**step for step in range(114))
TTFT_EDGES = tuple(0.02 * BUCKET_FACTOR**step for step in range(143))
PROMPT_EDGES = tuple(float(2**power) for power in range(18))
EDGES = {Latency.TPOT: TPOT_EDGES, Latency.TTFT: TTFT_EDGES}
SLO = {Latency.TPOT: 0.030, Latency.TTFT: 1.0}
P99_22_MS = 0.022 / exp(2.326 * 0.35)


@dataclass(frozen=True)
class Served:
    """What one arm does in a while. Medians in seconds."""

    requests: float
    errors: float = 0.0
    stalls: float = 0.0
    tpot: float = P99_22_MS
    ttft: float = 0.1
    prompt: float = 500.0

    def slower(self, factor: float) -> "Served":
        """The same, with every latency so many times longer."""
        return replace(self, tpot=self.tpot * factor, ttft=self.ttft * factor)


@lru_cache(maxsize=4096)
def spread(requests: float, *, median: float, sigma: float, edges: tuple[float, ...]) -> Counts:
    """Expected observations per bucket of a log-normal latency."""
    below = [0.5 * (1 + erf(log(edge / median) / sigma / sqrt(2))) for edge in edges]
    shares = [high - low for low, high in zip([0.0, *below], [*below, 1.0], strict=True)]
    return tuple(requests * share for share in shares)


def over(requests: float, *, median: float, sigma: float, limit: float) -> float:
    """Expected observations over a limit."""
    return requests * (0.5 - 0.5 * erf(log(limit / median) / sigma / sqrt(2)))


@dataclass
class Totals:
    """What one gateway has counted of one arm."""

    scalars: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("requests", "errors", "stalls"), 0.0))
    over_slo: dict[Latency, float] = field(default_factory=lambda: dict.fromkeys(Latency, 0.0))
    latency: dict[Latency, list[float]] = field(
        default_factory=lambda: {kind: [0.0] * (len(EDGES[kind]) + 1) for kind in Latency}
    )
    prompts: list[float] = field(default_factory=lambda: [0.0] * (len(PROMPT_EDGES) + 1))

    def add(self, served: Served, *, whole: bool) -> None:
        """One more stretch of traffic."""
        for name in self.scalars:
            self.scalars[name] += getattr(served, name)
        for kind, median, sigma in ((Latency.TPOT, served.tpot, 0.35), (Latency.TTFT, served.ttft, 0.8)):
            counts = spread(served.requests, median=median, sigma=sigma, edges=EDGES[kind])
            counts = tuple(map(round, counts)) if whole else counts
            self.latency[kind] = [mine + more for mine, more in zip(self.latency[kind], counts, strict=True)]
            self.over_slo[kind] += over(served.requests, median=median, sigma=sigma, limit=SLO[kind])
        prompts = spread(served.requests, median=served.prompt, sigma=1.0, edges=PROMPT_EDGES)
        prompts = tuple(map(round, prompts)) if whole else prompts
        self.prompts = [mine + more for mine, more in zip(self.prompts, prompts, strict=True)]

    def counters(self) -> Counters:
        """As the gateway shows them."""
        return Counters(
            **self.scalars,
            over_slo=dict(self.over_slo),
            latency={kind: Histogram(EDGES[kind], tuple(accumulate(counts))) for kind, counts in self.latency.items()},
            prompt_tokens=Histogram(PROMPT_EDGES, tuple(accumulate(self.prompts))),
        )


@dataclass
class Gateways:
    """Cumulative counters of both arms, spread evenly over some gateways; time in seconds."""

    names: tuple[str, ...] = ("gw-a", "gw-b")
    at: float = 1000.0
    load: tuple[float, float] = (10.0, 10.0)
    whole: bool = False
    """Counts without fractions, as real ones are."""
    base: dict[str, Totals] = field(default_factory=dict)
    canary: dict[str, Totals] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.serve(base=Served(20_000, errors=20), canary=Served(0), seconds=0)

    def serve(self, *, base: Served, canary: Served, seconds: float = 30.0) -> None:
        """Time passes and requests are served."""
        self.at += seconds
        for arm, served in ((self.base, base), (self.canary, canary)):
            for name in self.names:
                arm.setdefault(name, Totals()).add(_part(served, len(self.names)), whole=self.whole)

    def restart(self, name: str) -> None:
        """A gateway's counters begin at 0 again."""
        self.base[name], self.canary[name] = Totals(), Totals()

    def reading(self, **changes: object) -> Reading:
        """As a reader would fill it in."""
        reading = Reading(
            at=self.at,
            base=_arm(self.base, self.names, self.load[0]),
            canary=_arm(self.canary, self.names, self.load[1]),
            expected_gateways=frozenset(map(GatewayName, self.names)),
        )
        return replace(reading, **changes)  # type: ignore[arg-type]


def session(settings: JudgeSettings | None = None, *, share: float = 0.01, steps: int = 4) -> StepSession:
    """A step whose weight was confirmed ten seconds before the first reading, caches warm."""
    context = StepContext(
        rollout_id="r1",
        step=0,
        judged_steps=steps,
        canary_share=share,
        confirmed_at=990.0,
        rollout_started_at=0.0,
        slo=SLO,
    )
    return StepSession(settings if settings is not None else JudgeSettings(), context)


def with_custom(reading: Reading, **values: tuple[float | None, float | None]) -> Reading:
    """Base's and the canary's number of user metrics."""
    return replace(reading, custom={name: CustomReading(*pair) for name, pair in values.items()})


def with_trouble(reading: Reading, reason: str, metric: str | None = None) -> Reading:
    """A reading during which the reader met something."""
    return replace(reading, troubles=(Trouble(reason, "said the reader", metric),))


def change_canary(reading: Reading, **changes: object) -> Reading:
    """Another value in the canary's counters at every gateway."""
    gateways = {name: replace(counters, **changes) for name, counters in reading.canary.gateways.items()}  # type: ignore[arg-type]
    return replace(reading, canary=replace(reading.canary, gateways=gateways))


def _part(served: Served, gateways: int) -> Served:
    return replace(
        served,
        requests=served.requests / gateways,
        errors=served.errors / gateways,
        stalls=served.stalls / gateways,
    )


def _arm(totals: dict[str, Totals], names: tuple[str, ...], load: float) -> ArmReading:
    gateways = {GatewayName(name): totals[name].counters() for name in names}
    return ArmReading(gateways=gateways, in_flight=load, ready_replicas=1)
