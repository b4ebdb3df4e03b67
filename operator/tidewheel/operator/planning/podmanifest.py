"""The engine pod of one replica, from the version's spec and its overlay.

How the overlay is merged: labels, annotations and the node selector key by key, where ours win; the pod's security
context key by key, where the overlay wins, for our keys are only its defaults; lists (environment, volumes, mounts,
tolerations, ...) are appended to ours; single values replace ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.crds.modelversion import ModelVersionSpec, PodOverlay
from tidewheel.crds.names import (
    ENGINE_PORT,
    ENGINE_PORT_NAME,
    ENGINE_TOKEN_SECRET,
    SERVING_GATE,
    model_version_name,
)
from tidewheel.operator.planning.labels import child_labels
from tidewheel.operator.planning.records import VersionRecord

ENGINE_CONTAINER: Final = "engine"
TOKEN_FOLDER: Final = "/var/run/tidewheel"
ARTIFACT_FOLDER: Final = "/var/run/tidewheel-artifact"
NON_ROOT: Final = 65532
GRACE_BEYOND_DRAIN_SECONDS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What an installation decides about engine pods."""

    engine_token: bool
    """Mount the engine token and tell the engine to ask for it."""
    startup_timeout_seconds: int = 3600
    """A container that generated no token by then is restarted."""


def pod_name(version_name: str, *, slot: int, incarnation: int) -> str:
    """Deterministic, so that a second create of the same replica is refused by the API server."""
    return f"{version_name}-{slot}-{incarnation}"


def engine_pod(
    version: VersionRecord, spec: ModelVersionSpec, *, slot: int, incarnation: int, settings: PodSettings
) -> dict[str, Any]:
    """The Pod to create for one replica."""
    overlay = spec.replica.pod
    name = pod_name(model_version_name(spec.model, spec.version), slot=slot, incarnation=incarnation)
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": version.meta.namespace,
        "labels": {**overlay.labels, **child_labels(version)},
    }
    if overlay.annotations:
        metadata["annotations"] = dict(overlay.annotations)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [_engine_container(spec, settings)],
            "readinessGates": [{"conditionType": SERVING_GATE}],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": overlay.termination_grace_period_seconds
            or spec.drain.timeout_seconds + GRACE_BEYOND_DRAIN_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": _pod_security(overlay),
            "volumes": [*_volumes(spec, settings), *overlay.volumes],
            **_placement(overlay),
        },
    }


def engine_arguments(spec: ModelVersionSpec, settings: PodSettings) -> list[str]:
    """Arguments of the engine program; the version's own come last, so that they may override ours."""
    arguments = [
        f"--model={_model_path(spec.artifact.uri)}",
        "--host=0.0.0.0",
        f"--port={ENGINE_PORT}",
        f"--served-model-name={spec.model}",
        f"--dtype={spec.engine.dtype.value}",
        f"--max-model-len={spec.engine.max_model_len}",
        f"--shutdown-timeout={spec.drain.timeout_seconds}",
    ]
    if spec.artifact.sha256:
        arguments.append(f"--sha256={spec.artifact.sha256}")
    if settings.engine_token:
        arguments.append(f"--api-token-file={TOKEN_FOLDER}/token")
    return [*arguments, *spec.engine.args]


def _engine_container(spec: ModelVersionSpec, settings: PodSettings) -> dict[str, Any]:
    replica = spec.replica
    requests: dict[str, str] = {"cpu": replica.cpu, "memory": replica.memory}
    limits: dict[str, str] = {"memory": replica.memory}
    if replica.gpus:
        requests[replica.gpu_resource] = limits[replica.gpu_resource] = str(replica.gpus)
    return {
        "name": ENGINE_CONTAINER,
        "image": spec.engine.image,
        "args": engine_arguments(spec, settings),
        "ports": [{"name": ENGINE_PORT_NAME, "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": {"requests": requests, "limits": limits},
        "env": list(replica.pod.env),
        "volumeMounts": [*_mounts(spec, settings), *replica.pod.volume_mounts],
        **_probes(settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _probes(settings: PodSettings) -> dict[str, Any]:
    """Ready means that a token was generated; alive means progress. The start may take long, a hang may not."""
    ready = {"httpGet": {"path": "/ready", "port": ENGINE_PORT_NAME}, "periodSeconds": 1, "timeoutSeconds": 2}
    health = {"httpGet": {"path": "/health", "port": ENGINE_PORT_NAME}, "periodSeconds": 5, "timeoutSeconds": 5}
    return {
        "startupProbe": {**ready, "failureThreshold": settings.startup_timeout_seconds},
        "readinessProbe": {**ready, "failureThreshold": 2},
        "livenessProbe": {**health, "failureThreshold": 3},
    }


def _pod_security(overlay: PodOverlay) -> dict[str, Any]:
    ours = {
        "runAsNonRoot": True,
        "runAsUser": NON_ROOT,
        "runAsGroup": NON_ROOT,
        "fsGroup": NON_ROOT,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {**ours, **(overlay.security_context or {})}


def _placement(overlay: PodOverlay) -> dict[str, Any]:
    fields: Mapping[str, Any] = {
        "nodeSelector": overlay.node_selector,
        "affinity": overlay.affinity,
        "tolerations": overlay.tolerations,
        "topologySpreadConstraints": overlay.topology_spread_constraints,
        "priorityClassName": overlay.priority_class_name,
        "runtimeClassName": overlay.runtime_class_name,
        "serviceAccountName": overlay.service_account_name,
        "imagePullSecrets": overlay.image_pull_secrets,
    }
    return {name: value for name, value in fields.items() if value}


def _claim(uri: str) -> tuple[str, str] | None:
    """Claim and path of a ``pvc://`` URI."""
    if not uri.startswith("pvc://"):
        return None
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    return claim, path


def _model_path(uri: str) -> str:
    claim = _claim(uri)
    return f"{ARTIFACT_FOLDER}/{claim[1]}" if claim else uri


def _volumes(spec: ModelVersionSpec, settings: PodSettings) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = []
    if settings.engine_token:
        # Optional: without the Secret the engine starts and says so, in words that reach the version's status.
        secret = {"secretName": ENGINE_TOKEN_SECRET, "optional": True, "items": [{"key": "token", "path": "token"}]}
        volumes.append({"name": "engine-token", "secret": secret})
    if claim := _claim(spec.artifact.uri):
        volumes.append({"name": "artifact", "persistentVolumeClaim": {"claimName": claim[0], "readOnly": True}})
    return volumes


def _mounts(spec: ModelVersionSpec, settings: PodSettings) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    if settings.engine_token:
        mounts.append({"name": "engine-token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    if _claim(spec.artifact.uri):
        mounts.append({"name": "artifact", "mountPath": ARTIFACT_FOLDER, "readOnly": True})
    return mounts
