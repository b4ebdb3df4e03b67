"""When a replica that leaves may be deleted: never under a stream, never later than its time."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.operator.planning.actions import DeletePod
from tidewheel.operator.planning.records import LoadReading, PodRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSettings:
    """How a replica leaves."""

    propagation_seconds: float = 3.0
    """After the gate closes, gateways may still send for so long; no engine counts as idle before."""
    status_seconds: float = 10.0
    """How often a draining replica's streams are looked at for the status."""
    final_grace_seconds: int = 15
    """Time the engine has, past the drain's end, to finish streams with a proper last chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStep:
    """Delete now, or look again at ``wake_at``."""

    wake_at: datetime
    delete: DeletePod | None = None


def drain_step(
    pod: PodRecord, *, load: LoadReading | None, now: datetime, settings: DrainSettings, timeout_seconds: int
) -> DrainStep:
    """One look at a draining pod; the drain began when its gate closed."""
    assert pod.gate is not None
    began = pod.gate.since or now
    deadline = began + timedelta(seconds=timeout_seconds)
    told = began + timedelta(seconds=settings.propagation_seconds)
    name = pod.meta.name
    if not pod.may_hold_streams:
        return DrainStep(wake_at=now, delete=_delete(pod, f"delete pod {name}: its engine is not running"))
    if now >= deadline:
        message = f"delete pod {name}: drain.timeoutSeconds ({timeout_seconds}) is over"
        if load is not None and load.streams:
            message += f", {load.streams} streams are cut"
        return DrainStep(wake_at=now, delete=_delete(pod, message, grace_seconds=settings.final_grace_seconds))
    if load is not None and load.streams == 0 and load.draining and load.at >= told:
        return DrainStep(wake_at=now, delete=_delete(pod, f"delete pod {name}: its streams have ended"))
    return DrainStep(wake_at=min(deadline, now + timedelta(seconds=settings.status_seconds)))


def _delete(pod: PodRecord, message: str, *, grace_seconds: int | None = None) -> DeletePod:
    return DeletePod(pod=pod, message=message, grace_seconds=grace_seconds)
