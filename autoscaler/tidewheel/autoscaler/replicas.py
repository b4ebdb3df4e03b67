"""How many replicas a version has: the one table that everybody uses (DESIGN section 6)."""

from dataclasses import dataclass

from tidewheel.autoscaler.version_plan import LoadPlan
from tidewheel.crds.names import TOTAL_BASIS_POINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionNeeds:
    """What is known about a version when its replicas are counted. Shares are in basis points."""

    replicas: int | None = None
    """``spec.replicas``."""
    min_replicas: int | None = None
    """``spec.scaling.minReplicas``."""
    max_replicas: int | None = None
    """``spec.scaling.maxReplicas``."""
    weight: int = 0
    """Share in the RoutingTable."""
    growing_to: int = 0
    """Share that an accepted rule wants it to have next, while that is more than it has."""
    warm_weight: int = 0
    """Share it had when it became a rollback target that is kept warm."""
    named: bool = False
    """The rule names it, at whatever share."""
    move_pending: bool = False
    """Traffic is about to move between versions, and waits for replicas."""
    present: int = 0
    """Replicas it has now, those that leave not counted."""
    replaced: bool = False
    """`onCapacity: Replace`: it has replicas for its share and no more, so that the other version has room."""
    load: LoadPlan | None = None
    """What measured and forecast demand asks for; None without ``scaling``, or before anything is known."""


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """The number, and the row of the table that it comes from."""

    count: int
    reason: str


def full_size(needs: VersionNeeds) -> int:
    """Replicas for the whole of the share that the version is meant for.

    ``replicas``, or ``scaling``'s lower bound while no demand is known.
    """
    size = needs.replicas if needs.replicas is not None else needs.min_replicas or 0
    return size if needs.max_replicas is None else min(size, needs.max_replicas)


def share_size(needs: VersionNeeds, share: int) -> int:
    """Replicas that ``share`` basis points of traffic ask for; at least one, but for a version that may sleep.

    From demand where it is known; else the part of the full size. Each arm of a rollout is planned for itself: its own
    share, on its own capacity. One basis point is what splits are rounded by, and no reason for a replica: two thirds
    of three replicas are two.
    """
    if needs.load is not None:
        return needs.load.size(share, present=needs.present)
    return max(1, -(-full_size(needs) * max(share - 1, 0) // TOTAL_BASIS_POINTS))


def wanted_replicas(needs: VersionNeeds) -> ReplicaCount:
    """The row of the table that applies; where several do, the one that keeps more replicas."""
    if needs.replaced:
        return _replaced_size(needs)
    rows = []
    if needs.weight:
        rows.append(ReplicaCount(_serving_size(needs, needs.weight), f"takes {percent(needs.weight)} of traffic"))
        if needs.move_pending:
            rows.append(ReplicaCount(needs.present, "never fewer than it has while traffic is about to move"))
    if needs.growing_to:
        count = _serving_size(needs, needs.growing_to)
        rows.append(ReplicaCount(count, f"about to take {percent(needs.growing_to)} of traffic"))
    if needs.warm_weight:
        # Never shrunk while warm: what it had is what an instant rollback needs, whatever the spec says by now.
        count = max(share_size(needs, needs.warm_weight), needs.present)
        rows.append(ReplicaCount(count, f"kept warm for the {percent(needs.warm_weight)} of traffic that it had"))
    rows.append(_by_name(needs))
    return max(rows, key=lambda row: row.count)


def _replaced_size(needs: VersionNeeds) -> ReplicaCount:
    """Base shrinks to what its share needs, never below, as soon as the share is lower; nothing is kept warm."""
    share = max(needs.weight, needs.growing_to)
    if not share:
        return ReplicaCount(0, "takes no traffic, and onCapacity: Replace leaves its room to the others")
    words = f"about to take {percent(share)}" if share > needs.weight else f"takes {percent(share)}"
    return ReplicaCount(share_size(needs, share), f"{words} of traffic, no more than that needs (onCapacity: Replace)")


def percent(basis_points: int) -> str:
    """``9_950`` as ``99.5 %``."""
    return f"{basis_points / 100:g} %"


def _serving_size(needs: VersionNeeds, share: int) -> int:
    """A version with ``scaling`` of which no demand is known yet (an operator has just begun) keeps what it has."""
    if needs.load is not None:
        return share_size(needs, share)
    kept = 0 if needs.max_replicas is None else min(needs.present, needs.max_replicas)
    return max(full_size(needs), kept, 1)


def _by_name(needs: VersionNeeds) -> ReplicaCount:
    if needs.named:
        return ReplicaCount(full_size(needs), "named in the rule, takes no traffic")
    return ReplicaCount(needs.replicas or 0, "takes no traffic and no rule names it")
