"""Rollback targets: versions whose replicas stay for a while after their traffic has gone."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from tidewheel.crds.names import BasisPoints
from tidewheel.crds.routingtable import KeepWarm, RoutingTableSpec, Target
from tidewheel.operator.moments import format_moment, parse_moment


def still_warm(entries: Sequence[KeepWarm], now: datetime) -> list[KeepWarm]:
    """The entries whose time is not over."""
    return [entry for entry in entries if parse_moment(entry.until) > now]


def warm_weights(spec: RoutingTableSpec, now: datetime) -> dict[str, int]:
    """The share that each version kept warm once had."""
    return {entry.version: entry.weight for entry in still_warm(spec.keep_warm, now)}


def keep_warm_after_move(
    entries: Sequence[KeepWarm],
    before: Sequence[Target],
    after: Mapping[str, BasisPoints],
    *,
    now: datetime,
    keep_seconds: int,
) -> list[KeepWarm]:
    """Versions that lose weight are kept for what they had; one that has regained its share needs no keeping."""
    warm = {entry.version: entry for entry in still_warm(entries, now)}
    until = format_moment(now + timedelta(seconds=keep_seconds))
    for target in before:
        if after.get(target.version, 0) < target.weight and keep_seconds > 0:
            known = warm.get(target.version)
            had = max(target.weight, known.weight) if known else target.weight
            warm[target.version] = KeepWarm(**{**dict(target), "weight": had, "until": until})
    return [entry for entry in warm.values() if after.get(entry.version, 0) < entry.weight]
