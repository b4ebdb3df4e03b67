"""Which replicas leave when there are too many."""

from collections.abc import Iterable, Mapping
from math import inf

from tidewheel.operator.planning.records import LoadReading, PodRecord


def choose_victims(pods: Iterable[PodRecord], count: int, loads: Mapping[str, LoadReading]) -> tuple[PodRecord, ...]:
    """The ``count`` replicas whose loss costs least.

    Those that serve nobody go first (aibrix#2549), unscheduled before loading; then those with the fewest streams, then
    those with the youngest. An engine that does not answer counts as the busiest: unknown is not idle.
    """
    return tuple(sorted(pods, key=lambda pod: _cost(pod, loads.get(pod.meta.uid)))[:count])


def _cost(pod: PodRecord, load: LoadReading | None) -> tuple[bool, bool, float, float, float, int]:
    streams = inf if load is None or load.streams is None else load.streams
    oldest = inf if load is None else load.oldest_stream_seconds or 0.0
    created = pod.meta.created.timestamp() if pod.meta.created else 0.0
    return (pod.may_hold_streams or pod.ready, bool(pod.node), streams, oldest, -created, -pod.slot)
