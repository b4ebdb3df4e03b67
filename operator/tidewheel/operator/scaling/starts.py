"""Cold starts, measured from the pods themselves: creation, node, container, first token."""

from collections.abc import Sequence

from tidewheel.autoscaler.cold_start import KEPT_SAMPLES, ColdStart, StartPath, nearest_rank
from tidewheel.crds.scalingstatus import ColdStartSample, ColdStartStatus
from tidewheel.operator.moments import format_moment
from tidewheel.operator.planning.records import PodRecord

WARM_IMAGE_SECONDS = 3.0
"""A container that runs so soon after its node was chosen did not wait for an image."""


def measured_starts(pods: Sequence[PodRecord], known: ColdStartStatus | None) -> ColdStartStatus | None:
    """The last starts, of what is known and of these pods; each pod counts once.

    The last by the moments at which they were over: of fifty pods the same twenty are kept at every look.
    """
    before = list(known.samples) if known is not None else []
    names = {sample.pod for sample in before}
    fresh = [found for pod in pods if pod.meta.name not in names and (found := _sample(pod)) is not None]
    samples = sorted([*before, *fresh], key=lambda sample: (sample.ready_at or "", sample.pod))[-KEPT_SAMPLES:]
    if not fresh or samples == before:
        return known
    totals = [sample.total_seconds for sample in samples]
    return ColdStartStatus(
        p50_seconds=int(nearest_rank(totals, 0.5)), p95_seconds=int(nearest_rank(totals, 0.95)), samples=samples
    )


def as_starts(status: ColdStartStatus | None) -> list[ColdStart]:
    """For the autoscaler."""
    if status is None:
        return []
    return [
        ColdStart(
            total=float(sample.total_seconds),
            path=StartPath.WARM if sample.path == StartPath.WARM else StartPath.COLD,
            scheduled=float(sample.scheduled_seconds),
            image=float(sample.image_seconds),
            engine=float(sample.engine_seconds),
        )
        for sample in status.samples
    ]


def _sample(pod: PodRecord) -> ColdStartSample | None:
    """A restarted container is no start of a replica: its node and image were there already."""
    created, ready, running = pod.meta.created, pod.ready_since, pod.engine.running_since
    if not pod.ready or created is None or ready is None or running is None or pod.engine.restarts or ready < created:
        return None
    placed = pod.scheduled.since if pod.scheduled is not None and pod.scheduled.since is not None else created
    image = max(0.0, (running - placed).total_seconds())
    return ColdStartSample(
        pod=pod.meta.name,
        path=(StartPath.WARM if image <= WARM_IMAGE_SECONDS else StartPath.COLD).value,
        total_seconds=round((ready - created).total_seconds()),
        scheduled_seconds=round(max(0.0, (placed - created).total_seconds())),
        image_seconds=round(image),
        engine_seconds=round(max(0.0, (ready - running).total_seconds())),
        ready_at=format_moment(ready),
    )
