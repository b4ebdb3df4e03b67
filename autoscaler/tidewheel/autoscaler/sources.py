"""Where replicas come from: reserved capacity first, then on-demand, spot last and never alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class SourceKind(StrEnum):
    """How a pool of nodes is paid for."""

    RESERVED = "reserved"
    ON_DEMAND = "onDemand"
    SPOT = "spot"


_ORDER: Final = {SourceKind.RESERVED: 0, SourceKind.ON_DEMAND: 1, SourceKind.SPOT: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A pool and how many replicas of the version it may hold."""

    name: str
    kind: SourceKind
    max_replicas: int
    price: float = 0.0
    """Of a replica for an hour; the cheaper of one kind first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Replicas by source, and what no source could give."""

    counts: Mapping[str, int]
    shortfall: int


def allocate(wanted: int, sources: Sequence[Source], *, spot_share: float = 0.5) -> Allocation:
    """Fill the sources in order of kind and price.

    Spot holds at most ``spot_share`` of what the others hold together with it, so that a reclaim leaves a service.
    """
    counts: dict[str, int] = {}
    left = wanted
    for source in sorted(sources, key=lambda source: (_ORDER[source.kind], source.price, source.name)):
        room = source.max_replicas
        if source.kind is SourceKind.SPOT:
            room = min(room, int(spot_share * wanted))
        taken = min(left, room)
        if taken:
            counts[source.name] = taken
        left -= taken
    return Allocation(counts=counts, shortfall=left)


def next_source(present: Mapping[str, int], wanted: int, sources: Sequence[Source]) -> str | None:
    """The source of the next replica: the first in order that holds fewer than it should; None without sources."""
    if not sources:
        return None
    target = allocate(wanted, sources).counts
    for source in sorted(sources, key=lambda source: (_ORDER[source.kind], source.price, source.name)):
        if present.get(source.name, 0) < target.get(source.name, 0):
            return source.name
    return None
