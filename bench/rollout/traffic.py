"""Requests to two versions, drawn rather than served: what the gateways would have counted."""

from dataclasses import dataclass
from functools import cache, lru_cache
from math import erf, exp, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.readings import ArmReading, Counters, GatewayName, Histogram, Reading
from tidewheel.rollout.judge.settings import BUCKET_FACTOR

GATEWAY: Final = GatewayName("all")
_TOKEN_EDGES: Final = tuple(float(2**power) for power in range(18))
_HEAVY_TENANTS: Final = 20
_HEAVY_SHARE: Final = 0.01

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """A log-normal latency in seconds."""

    median: float
    sigma: float
    slo: float
    lowest_edge: float
    highest_edge: float

    def edges(self) -> tuple[float, ...]:
        """As the gateways' histograms have them."""
        steps = int(log(self.highest_edge / self.lowest_edge) / log(BUCKET_FACTOR)) + 1
        return tuple(self.lowest_edge * BUCKET_FACTOR**step for step in range(steps + 1))


SMALL_PLATFORM: Final = {
    Latency.TPOT: Shape(median=0.022 / exp(2.326 * 0.35), sigma=0.35, slo=0.030, lowest_edge=0.0005, highest_edge=5.0),
    Latency.TTFT: Shape(median=0.1, sigma=0.8, slo=1.0, lowest_edge=0.001, highest_edge=120.0),
}
"""DESIGN section 12: p99 TPOT 22 ms against an SLO of 30 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What makes requests of one block depend on each other. Standard deviations are of the logarithm."""

    block: float = 0.0
    """Of each arm's latency, afresh in every block."""
    replica: float = 0.0
    """Of each replica's latency, lasting for minutes; an arm has the mean of its replicas."""
    burst: float = 0.0
    """Of the arrival rate in a block, both arms alike; latency follows load."""
    heavy_tenants: bool = False
    """A fifth of all traffic comes from 20 tenants that each stick to one arm, come and go, and have prompts of their
    own length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with the canary."""

    tpot: float = 1.0
    ttft: float = 1.0
    errors: float = 0.0
    stalls: float = 0.0
    share_hit: float = 1.0
    """Share of the canary's requests that the fault hits, such as those with long prompts."""
    one_replica: bool = False
    """It hits what one of the canary's replicas serves: everything while there is one, ever less as it grows."""
    from_share: float = 0.0
    """It begins once the canary has this share of traffic."""
    leak_per_hour: float = 0.0
    """Growth of the latency factors per hour of life."""


class Traffic:
    """Cumulative counters of one base and one canary, advanced block by block."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        rate: float,
        noise: Noise = Noise(),
        fault: Fault = Fault(),
        base_errors: float = 0.001,
        replicas: int = 20,
    ) -> None:
        self._rng, self._rate, self._noise, self._fault = rng, rate, noise, fault
        self._base_errors, self._replicas = base_errors, replicas
        self._latencies = {kind: _latency(shape) for kind, shape in SMALL_PLATFORM.items()}
        self._arms = {"base": _Arm(self._latencies), "canary": _Arm(self._latencies)}
        self._tenants = rng.uniform(size=_HEAVY_TENANTS)
        self._tenant_prompts = rng.normal(0, 0.5, size=_HEAVY_TENANTS)
        self._lasting = {"base": rng.normal(), "canary": rng.normal()}
        self._age = 0.0
        self.exposed = 0.0
        self._share = 0.0

    def advance(self, seconds: float, canary_share: float) -> None:
        """Serve for so long under one weight."""
        self._share = canary_share
        self._age += seconds if canary_share else 0.0
        burst = exp(self._noise.burst * self._rng.normal() - self._noise.burst**2 / 2)
        active = self._rng.uniform(size=_HEAVY_TENANTS) < 0.5 if self._noise.heavy_tenants else np.zeros(_HEAVY_TENANTS)
        for name, share in (("base", 1 - canary_share), ("canary", canary_share)):
            mine = self._tenants < canary_share if name == "canary" else self._tenants >= canary_share
            heavy = np.flatnonzero(mine & (active > 0))
            light = share * (1 - _HEAVY_TENANTS * _HEAVY_SHARE * self._noise.heavy_tenants)
            load = exp(0.3 * (burst - 1))
            speed = load * self._speed(name, share)
            self._serve(name, self._rate * seconds * burst * light, speed=speed, prompt=0.0)
            for tenant in heavy:
                mean = self._rate * seconds * burst * 2 * _HEAVY_SHARE
                self._serve(name, mean, speed=speed, prompt=float(self._tenant_prompts[tenant]))

    def reading(self, at: float) -> Reading:
        """The counters now."""
        counters = {name: arm.counters() for name, arm in self._arms.items()}
        return Reading(
            at=at,
            base=ArmReading(gateways={GATEWAY: counters["base"]}, in_flight=10.0, ready_replicas=10),
            canary=ArmReading(gateways={GATEWAY: counters["canary"]}, in_flight=10.0, ready_replicas=10),
            expected_gateways=frozenset({GATEWAY}),
        )

    def _speed(self, name: str, share: float) -> float:
        """Factor on this arm's latency in this block."""
        replicas = max(1, round(self._replicas * share))
        lasting = 0.8 * self._lasting[name] + 0.6 * self._rng.normal()
        self._lasting[name] = lasting
        return exp(self._noise.block * self._rng.normal() + self._noise.replica / sqrt(replicas) * lasting)

    def _serve(self, name: str, mean: float, *, speed: float, prompt: float) -> None:
        requests = int(self._rng.poisson(mean))
        if not requests:
            return
        arm, fault = self._arms[name], self._fault
        faulty = name == "canary" and self._share >= fault.from_share
        self.exposed += requests if faulty else 0
        leak = 1 + fault.leak_per_hour * self._age / 3600 if faulty else 1.0
        hit = fault.share_hit if faulty else 0.0
        if fault.one_replica:
            hit /= max(1, round(self._replicas * self._share))
        errors = self._base_errors + (fault.errors * hit if faulty else 0.0)
        arm.requests += requests
        arm.errors += int(self._rng.binomial(requests, min(errors, 1.0)))
        arm.stalls += int(self._rng.binomial(requests, 0.0005 + (fault.stalls * hit if faulty else 0.0)))
        factors = {Latency.TPOT: fault.tpot * leak, Latency.TTFT: fault.ttft * leak}
        for kind, latency in self._latencies.items():
            own = speed * (exp(prompt) if kind is Latency.TTFT else 1.0)
            shares = latency.shares(own)
            if faulty and factors[kind] != 1.0:
                shares = (1 - hit) * shares + hit * latency.shares(own * factors[kind])
            arm.add(kind, self._rng.multinomial(requests, shares), latency)
        arm.add_prompts(self._rng.lognormal(6.5 + prompt, 1.0, size=min(requests, 200)), requests)


class _Latency:
    """Bucket probabilities of a shape at any speed, with the SLO as one more edge."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.edges = shape, shape.edges()
        fine = sorted({*self.edges, shape.slo})
        self.slo_bucket = fine.index(shape.slo)
        self.slo_is_edge = shape.slo in self.edges
        self._logs = np.log(np.array(fine) / shape.median) / shape.sigma
        self.shares = lru_cache(maxsize=64)(self._shares)

    def _shares(self, speed: float) -> Numbers:
        """Probability of each bucket."""
        below = np.interp(self._logs - log(speed) / self.shape.sigma, *_normal_law())
        shares = np.diff(below, prepend=0.0, append=1.0)
        return np.asarray(shares / shares.sum())


@cache
def _latency(shape: Shape) -> _Latency:
    return _Latency(shape)


@cache
def _normal_law() -> tuple[Numbers, Numbers]:
    """The normal distribution function, to be interpolated."""
    grid = np.linspace(-8, 8, 4001)
    return grid, np.array([0.5 * (1 + erf(x / sqrt(2))) for x in grid])


class _Arm:
    def __init__(self, latencies: dict[Latency, _Latency]) -> None:
        self.requests = self.errors = self.stalls = 0
        self._latencies = latencies
        self._counts = {kind: np.zeros(len(latency.edges) + 1) for kind, latency in latencies.items()}
        self._over = dict.fromkeys(latencies, 0.0)
        self._prompts = np.zeros(len(_TOKEN_EDGES) + 1)

    def add(self, kind: Latency, fine: NDArray[np.int64], latency: _Latency) -> None:
        slo = latency.slo_bucket
        self._over[kind] += float(fine[slo + 1 :].sum())
        merged = fine.astype(float)
        if not latency.slo_is_edge:
            merged[slo + 1] += merged[slo]
            merged = np.concatenate((merged[:slo], merged[slo + 1 :]))
        self._counts[kind] += merged

    def add_prompts(self, sample: Numbers, requests: int) -> None:
        """A sample stands for all of them."""
        counts = np.bincount(np.searchsorted(_TOKEN_EDGES, sample), minlength=len(self._prompts)).astype(float)
        self._prompts += counts * (requests / len(sample))

    def counters(self) -> Counters:
        """As one gateway shows them."""
        return Counters(
            requests=float(self.requests),
            errors=float(self.errors),
            stalls=float(self.stalls),
            over_slo=dict(self._over),
            latency={
                kind: Histogram(self._latencies[kind].edges, tuple(np.cumsum(counts).tolist()))
                for kind, counts in self._counts.items()
            },
            prompt_tokens=Histogram(_TOKEN_EDGES, tuple(np.cumsum(self._prompts).tolist())),
        )
