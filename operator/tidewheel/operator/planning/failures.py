"""Why a replica does not serve, in words that name the fix."""

import re
from dataclasses import dataclass
from typing import Final

from tidewheel.crds.modelversion import ModelVersionSpec
from tidewheel.operator.planning.records import PodRecord, Termination
from tidewheel.operator.planning.verdicts import Finding

FATAL_START_EXIT_CODE: Final = 3
"""The engine's word for: no retry can help (missing artefact, wrong sha256, unusable file)."""

LAST_WORDS_LENGTH: Final = 700

_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One replica's trouble. ``stalled``: it stays until a person acts; ``severity`` orders problems, worst last."""

    pod: str
    finding: Finding
    part: str
    """The condition it makes False: Scheduled or WeightsLoaded."""
    stalled: bool
    severity: int


def worst_problem(pods: tuple[PodRecord, ...], spec: ModelVersionSpec) -> Problem | None:
    """The gravest problem among the replicas that should serve."""
    found = (diagnose(pod, spec) for pod in pods if not pod.is_terminating and not pod.is_draining)
    return max((problem for problem in found if problem is not None), key=lambda each: each.severity, default=None)


def diagnose(pod: PodRecord, spec: ModelVersionSpec) -> Problem | None:
    """What keeps this replica from serving, if it is more than time."""
    if pod.is_finished:
        words = pod.message or "no message"
        finding = Finding(pod.reason or "PodFailed", f"pod {pod.meta.name} was ended by its node: {words}")
        return Problem(pod=pod.meta.name, finding=finding, part="Scheduled", stalled=False, severity=1)
    if pod.ready:
        return None
    return _unscheduled(pod, spec) or _waiting(pod, spec) or _crashed(pod, spec)


def _unscheduled(pod: PodRecord, spec: ModelVersionSpec) -> Problem | None:
    scheduled = pod.scheduled
    if pod.node or scheduled is None or scheduled.status != "False":
        return None
    replica = spec.replica
    words = scheduled.message or scheduled.reason
    lacking = re.search(r"(\d+) Insufficient " + re.escape(replica.gpu_resource), words) if replica.gpus else None
    nodes = re.match(r"\d+/(\d+) nodes are available", words)
    if lacking:
        asked = f"{lacking[1]} of {nodes[1]}" if nodes else lacking[1]
        finding = Finding(
            "NoGpuFree",
            f"pod {pod.meta.name} needs {replica.gpus} {replica.gpu_resource}, and no node has as many free ({asked} "
            f"node(s) asked have too few); add nodes, free GPUs or lower the number of replicas. Scheduler: {words}",
        )
    else:
        finding = Finding("Unschedulable", f"no node takes pod {pod.meta.name}. Scheduler: {words}")
    return Problem(pod=pod.meta.name, finding=finding, part="Scheduled", stalled=False, severity=2)


def _waiting(pod: PodRecord, spec: ModelVersionSpec) -> Problem | None:
    engine = pod.engine
    if engine.waiting_reason in _IMAGE_REASONS:
        message = f"image {spec.engine.image} cannot be pulled: {engine.waiting_message or engine.waiting_reason}; "
        finding = Finding(
            "ImagePullFailed",
            message + "push it, or create a version with the right spec.engine.image or imagePullSecrets",
        )
        return Problem(pod=pod.meta.name, finding=finding, part="WeightsLoaded", stalled=True, severity=3)
    if engine.waiting_reason in _CONFIG_REASONS:
        finding = Finding(
            "ContainerNotCreated",
            f"the engine container of pod {pod.meta.name} cannot be created: {engine.waiting_message}",
        )
        return Problem(pod=pod.meta.name, finding=finding, part="WeightsLoaded", stalled=True, severity=3)
    return None


def _crashed(pod: PodRecord, spec: ModelVersionSpec) -> Problem | None:
    last = pod.engine.terminated or pod.engine.last_terminated
    if last is None or pod.engine.started:
        return None
    fatal = last.exit_code == FATAL_START_EXIT_CODE
    return Problem(
        pod=pod.meta.name,
        finding=_last_words(pod, last, spec),
        part="WeightsLoaded",
        stalled=fatal,
        severity=5 if fatal else 4,
    )


def _last_words(pod: PodRecord, last: Termination, spec: ModelVersionSpec) -> Finding:
    words = last.message[-LAST_WORDS_LENGTH:] or "it left no last words"
    if last.exit_code == FATAL_START_EXIT_CODE:
        return Finding("EngineCannotStart", f"the engine of pod {pod.meta.name} says: {words}")
    if last.reason == "OOMKilled":
        return Finding(
            "OutOfMemory",
            f"the engine of pod {pod.meta.name} used more than spec.replica.memory ({spec.replica.memory}) and was "
            "killed; create a version with more memory or a smaller --kv-memory",
        )
    ended = f"ended with code {last.exit_code} ({last.reason or 'Error'}), {pod.engine.restarts} restart(s)"
    return Finding("CrashLoop", f"the engine of pod {pod.meta.name} {ended}; its last words: {words}")
