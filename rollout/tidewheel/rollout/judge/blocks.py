"""Blocks: what both arms did between two readings that do not overlap."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import add, sub

from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.readings import (
    ArmReading,
    Counters,
    CustomReading,
    GatewayName,
    Histogram,
    Reading,
    Seconds,
    Trouble,
)

Counts = tuple[float, ...]
"""Observations per bucket; the last bucket is everything over the last edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmBlock:
    """What one arm did in a block."""

    requests: float = 0.0
    errors: float = 0.0
    stalls: float = 0.0
    over_slo: Mapping[Latency, float] = field(default_factory=dict)
    latency: Mapping[Latency, Counts] = field(default_factory=dict)
    prompt_tokens: Counts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A stretch of one step under one weight. ``counts_time``: the bake clock may count it.

    ``load_ratio`` is the canary's requests in flight per replica divided by base's; None: not known.
    """

    start: Seconds
    end: Seconds
    base: ArmBlock
    canary: ArmBlock
    load_ratio: float | None = None
    custom: Mapping[str, CustomReading] = field(default_factory=dict)
    counts_time: bool = True

    @property
    def seconds(self) -> Seconds:
        """Its length."""
        return self.end - self.start


def cut_block(before: Reading, after: Reading, *, counts_time: bool = True) -> Block | Trouble:
    """The block between two usable readings.

    Increases are taken per gateway, then added up. A gateway whose request counter fell has restarted, and all it
    counted since is counted; one that was not there before is new, and so is all it counted.
    """
    restarted = _restarted(before, after)
    base = _increase(before.base, after.base, restarted)
    canary = _increase(before.canary, after.canary, restarted)
    for arm in (base, canary):
        if isinstance(arm, Trouble):
            return arm
    assert isinstance(base, ArmBlock)
    assert isinstance(canary, ArmBlock)
    loads = after.base.load_per_replica, after.canary.load_per_replica
    return Block(
        start=before.at,
        end=after.at,
        base=base,
        canary=canary,
        load_ratio=loads[1] / loads[0] if loads[0] and loads[1] is not None else None,
        custom=dict(after.custom),
        counts_time=counts_time,
    )


def add_counts(totals: Iterable[Counts]) -> Counts:
    """Element by element; all of one layout."""
    total: Counts = ()
    for counts in totals:
        if total and len(counts) != len(total):
            raise ValueError(f"{len(counts)} buckets cannot be added to {len(total)}")
        total = tuple(map(add, total, counts)) if total else counts
    return total


def _restarted(before: Reading, after: Reading) -> frozenset[GatewayName]:
    """A gateway's process counts both arms, so a restart seen in one is a restart of both."""
    fallen: set[GatewayName] = set()
    for old_arm, new_arm in ((before.base, after.base), (before.canary, after.canary)):
        for name, new in new_arm.gateways.items():
            old = old_arm.gateways.get(name)
            if old is not None and (new.requests or 0.0) < (old.requests or 0.0):
                fallen.add(name)
    return frozenset(fallen)


def _increase(before: ArmReading, after: ArmReading, restarted: frozenset[GatewayName]) -> ArmBlock | Trouble:
    parts = []
    for name, new in after.gateways.items():
        old = None if name in restarted else before.gateways.get(name)
        part = _of_gateway(name, old, new)
        if isinstance(part, Trouble):
            return part
        parts.append(part)
    present = {latency for part in parts for latency in part.latency}
    return ArmBlock(
        requests=sum(part.requests for part in parts),
        errors=sum(part.errors for part in parts),
        stalls=sum(part.stalls for part in parts),
        over_slo={kind: sum(part.over_slo.get(kind, 0.0) for part in parts) for kind in present},
        latency={kind: add_counts(part.latency[kind] for part in parts if kind in part.latency) for kind in present},
        prompt_tokens=add_counts(part.prompt_tokens for part in parts if part.prompt_tokens),
    )


def _of_gateway(name: GatewayName, old: Counters | None, new: Counters) -> ArmBlock | Trouble:
    """Clamped at 0; a histogram that fell although its gateway did not restart is a fault of the data."""
    latency = {}
    for kind, histogram in new.latency.items():
        counts = _difference(old.latency.get(kind) if old else None, histogram)
        if counts is None:
            message = f"the {kind.value} buckets of gateway {name} fell without a restart"
            return Trouble("InconsistentBuckets", message, kind.value)
        latency[kind] = counts
    return ArmBlock(
        requests=_rise(old.requests if old else None, new.requests),
        errors=_rise(old.errors if old else None, new.errors),
        stalls=_rise(old.stalls if old else None, new.stalls),
        over_slo={kind: _rise(old.over_slo.get(kind) if old else None, value) for kind, value in new.over_slo.items()},
        latency=latency,
        prompt_tokens=(_difference(old.prompt_tokens if old else None, new.prompt_tokens) or ())
        if new.prompt_tokens
        else (),
    )


def _rise(old: float | None, new: float | None) -> float:
    return max(0.0, (new or 0.0) - (old or 0.0))


def _difference(old: Histogram | None, new: Histogram) -> Counts | None:
    """Increase per bucket; None where it is negative by more than rounding."""
    before = old.cumulative if old is not None else (0.0,) * len(new.cumulative)
    if len(before) != len(new.cumulative):
        return None
    rise = tuple(map(sub, new.cumulative, before))
    counts = (rise[0], *map(sub, rise[1:], rise))
    slack = 1e-6 * max(1.0, new.cumulative[-1])
    lowest = min(counts)
    if lowest < -slack:
        return None
    return counts if lowest >= 0.0 else tuple(max(0.0, count) for count in counts)
