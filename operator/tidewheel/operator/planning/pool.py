"""The replicas of one version: slots 0..n-1, each filled by the pods (incarnations) that come and go.

A pod goes through: created, gate open (live), drained (gate closed), deleted. The state is in the pods themselves, so
that an operator that is killed after any write carries on from what it finds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.operator.planning.actions import Action, AdoptPod, CreatePod, DeletePod, OpenGate, StartDrain
from tidewheel.operator.planning.drain import DrainSettings, drain_step
from tidewheel.operator.planning.labels import child_labels, digest_label
from tidewheel.operator.planning.podmanifest import PodSettings, engine_pod
from tidewheel.operator.planning.records import LoadReading, PodRecord, VersionRecord
from tidewheel.operator.planning.victims import choose_victims


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How replicas are made, drained and replaced."""

    pods: PodSettings
    drain: DrainSettings
    replace_backoff_seconds: float = 5.0
    """Wait before a pod that was evicted or failed is replaced; doubles with every incarnation."""
    replace_backoff_limit_seconds: float = 300.0
    load_poll_seconds: float = 1.0
    min_ready_seconds: float = 1.0
    """A replica gets weight only when it has been ready for so long: gateways must know it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """Actions on the pods of a version, the engines whose load must be asked, and when to look again."""

    actions: tuple[Action, ...] = ()
    polled: tuple[PodRecord, ...] = ()
    wake_at: tuple[datetime, ...] = ()


def plan_pool(
    version: VersionRecord,
    *,
    pods: Sequence[PodRecord],
    desired: int,
    reason: str,
    loads: Mapping[str, LoadReading],
    now: datetime,
    settings: PoolSettings,
) -> PoolPlan:
    """Bring the pods of ``version`` that run its digest to ``desired`` replicas."""
    assert version.spec is not None
    label = digest_label(version.digest)
    named = pods  # pods of another digest hold their names too
    pods = [pod for pod in pods if pod.digest_label == label]
    live = [pod for pod in pods if pod.is_live]
    finished = _plan_finished(pods, desired=desired, now=now, settings=settings)
    missing = desired - len(live) - finished.waiting
    if missing > 0:
        change = PoolPlan(actions=_creates(version, named, missing, reason, settings))
    else:
        change = _shrink(live, len(live) - desired, loads=loads, now=now, reason=reason, settings=settings)
    drained = plan_drains(
        pods, loads=loads, now=now, settings=settings.drain, timeout_seconds=version.spec.drain.timeout_seconds
    )
    return PoolPlan(
        actions=(*_welcome(version, live), *change.actions, *drained.actions, *finished.actions),
        polled=(*change.polled, *drained.polled),
        wake_at=(*change.wake_at, *drained.wake_at, *finished.wake_at),
    )


def _welcome(version: VersionRecord, live: Sequence[PodRecord]) -> tuple[Action, ...]:
    """Adopt the pods of a predecessor with the same digest, and open the gates of new ones."""
    adopt = (
        AdoptPod(
            pod=pod,
            labels=child_labels(version),
            message=f"{version.meta.name} was re-created with the same digest; it takes over pod {pod.meta.name}",
        )
        for pod in live
        if pod.owner_uid != version.meta.uid
    )
    gates = (OpenGate(pod=pod, message=f"pod {pod.meta.name} may become ready") for pod in live if pod.gate is None)
    return (*adopt, *gates)


def plan_retirement(
    pods: Sequence[PodRecord],
    *,
    reason: str,
    loads: Mapping[str, LoadReading],
    now: datetime,
    settings: PoolSettings,
    timeout_seconds: int,
) -> PoolPlan:
    """Drain and delete all of these pods: their version is gone, or is another one by now."""
    live = [pod for pod in pods if pod.is_live]
    leave = tuple(_leave(pod, reason) for pod in live)
    finished = tuple(
        DeletePod(pod=pod, message=f"pod {pod.meta.name} has ended")
        for pod in pods
        if pod.is_finished and not pod.is_terminating
    )
    drained = plan_drains(pods, loads=loads, now=now, settings=settings.drain, timeout_seconds=timeout_seconds)
    return PoolPlan(actions=(*leave, *finished, *drained.actions), polled=drained.polled, wake_at=drained.wake_at)


def plan_drains(
    pods: Sequence[PodRecord],
    *,
    loads: Mapping[str, LoadReading],
    now: datetime,
    settings: DrainSettings,
    timeout_seconds: int,
) -> PoolPlan:
    """Delete the draining pods that have ended their streams, or whose time is over."""
    actions: list[Action] = []
    polled: list[PodRecord] = []
    wake_at: list[datetime] = []
    for pod in pods:
        if not pod.is_draining or pod.is_terminating or pod.is_finished:
            continue
        step = drain_step(
            pod, load=loads.get(pod.meta.uid), now=now, settings=settings, timeout_seconds=timeout_seconds
        )
        if step.delete is not None:
            actions.append(step.delete)
        else:
            polled.append(pod)
            wake_at.append(step.wake_at)
    return PoolPlan(actions=tuple(actions), polled=tuple(polled), wake_at=tuple(wake_at))


def _creates(
    version: VersionRecord, pods: Sequence[PodRecord], missing: int, reason: str, settings: PoolSettings
) -> tuple[CreatePod, ...]:
    """New pods in the lowest free slots; a slot whose last pod is leaving is free, under the next incarnation."""
    assert version.spec is not None
    label = digest_label(version.digest)
    taken = {pod.slot for pod in pods if pod.is_live and pod.digest_label == label}
    highest = {pod.slot: pod.incarnation for pod in sorted(pods, key=lambda pod: pod.incarnation)}
    creates: list[CreatePod] = []
    slot = 0
    while len(creates) < missing:
        if slot not in taken:
            manifest = engine_pod(
                version, version.spec, slot=slot, incarnation=highest.get(slot, -1) + 1, settings=settings.pods
            )
            name = manifest["metadata"]["name"]
            creates.append(CreatePod(manifest=manifest, message=f"create pod {name}: {version.meta.name} {reason}"))
        slot += 1
    return tuple(creates)


def _shrink(
    live: Sequence[PodRecord],
    surplus: int,
    *,
    loads: Mapping[str, LoadReading],
    now: datetime,
    reason: str,
    settings: PoolSettings,
) -> PoolPlan:
    if surplus <= 0:
        return PoolPlan()
    candidates = [pod for pod in live if pod.may_hold_streams]
    idle_enough = len(live) - len(candidates)
    unknown = [pod for pod in candidates if pod.meta.uid not in loads]
    if surplus < len(live) and surplus > idle_enough and unknown:
        wake = now + timedelta(seconds=settings.load_poll_seconds)
        return PoolPlan(polled=tuple(candidates), wake_at=(wake,))
    victims = choose_victims(live, surplus, loads)
    return PoolPlan(actions=tuple(_leave(pod, reason) for pod in victims))


def _leave(pod: PodRecord, reason: str) -> Action:
    """A pod that may have streams is drained first; any other goes at once."""
    if pod.may_hold_streams or pod.ready:
        return StartDrain(pod=pod, message=f"drain pod {pod.meta.name}: {reason}")
    return DeletePod(pod=pod, message=f"delete pod {pod.meta.name}, which serves nobody yet: {reason}")


@dataclass(frozen=True, slots=True)
class _Finished:
    actions: tuple[DeletePod, ...]
    waiting: int
    wake_at: tuple[datetime, ...]


def _plan_finished(pods: Sequence[PodRecord], *, desired: int, now: datetime, settings: PoolSettings) -> _Finished:
    """Pods that ended for good (evicted, refused by their node) are replaced after a back-off that they carry."""
    live_slots = {pod.slot for pod in pods if pod.is_live}
    actions: list[DeletePod] = []
    wake_at: list[datetime] = []
    waiting = 0
    for pod in pods:
        if not pod.is_finished or pod.is_terminating:
            continue
        until = _backoff_end(pod, settings)
        if pod.slot in live_slots or pod.slot >= desired or until <= now:
            actions.append(DeletePod(pod=pod, message=f"pod {pod.meta.name} has ended: {pod.reason or pod.phase}"))
        else:
            waiting += 1
            wake_at.append(until)
    return _Finished(tuple(actions), waiting, tuple(wake_at))


def _backoff_end(pod: PodRecord, settings: PoolSettings) -> datetime:
    ended = pod.engine.terminated.finished if pod.engine.terminated else None
    start = ended or (pod.gate.since if pod.gate else None) or pod.meta.created
    assert start is not None
    seconds = min(
        settings.replace_backoff_limit_seconds, settings.replace_backoff_seconds * 2 ** min(pod.incarnation, 16)
    )
    return start + timedelta(seconds=seconds)
