"""The headless Service of a version, whose EndpointSlices tell gateways where its replicas are.

It selects by digest, not by uid: pods that a re-created version adopts stay its endpoints while they are relabelled.
"""

from collections.abc import Mapping
from typing import Any

from tidewheel.crds.names import (
    DIGEST_LABEL,
    ENGINE_PORT,
    ENGINE_PORT_NAME,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MODEL_LABEL,
    VERSION_LABEL,
    model_version_name,
)
from tidewheel.operator.planning.actions import Action, ApplyService, DeleteService
from tidewheel.operator.planning.labels import child_labels
from tidewheel.operator.planning.records import ServiceRecord, VersionRecord


def selector(version: VersionRecord, digest: str) -> dict[str, str]:
    """Labels of the pods that are endpoints of the version; ``digest`` as a label value."""
    return {MODEL_LABEL: version.model, VERSION_LABEL: version.version, DIGEST_LABEL: digest}


def service_manifest(version: VersionRecord, *, digest: str) -> dict[str, Any]:
    """The Service to apply: exactly the fields that are ours."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": model_version_name(version.model, version.version),
            "namespace": version.meta.namespace,
            "labels": {**child_labels(version), DIGEST_LABEL: digest},
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": False,
            "selector": selector(version, digest),
            "ports": [
                {
                    "name": ENGINE_PORT_NAME,
                    "port": ENGINE_PORT,
                    "targetPort": ENGINE_PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }


def matches(service: ServiceRecord, manifest: Mapping[str, Any]) -> bool:
    """Whether the fields that are ours are as we want them; what the server adds is not looked at."""
    labels = manifest["metadata"]["labels"]
    ports = tuple((port["name"], port["port"]) for port in manifest["spec"]["ports"])
    return (
        all(service.labels.get(key) == value for key, value in labels.items())
        and service.selector == manifest["spec"]["selector"]
        and service.ports == ports
    )


def is_ours(service: ServiceRecord) -> bool:
    """Whether the Service was made by us, whatever its owner is called today."""
    return service.labels.get(MANAGED_BY_LABEL) == MANAGED_BY


def plan_service(
    version: VersionRecord, service: ServiceRecord | None, *, digest: str, leaving: bool
) -> tuple[Action, ...]:
    """The Service exists from before the first pod until after the last one."""
    if leaving:
        return plan_service_removal(service) if service is not None else ()
    manifest = service_manifest(version, digest=digest)
    if service is not None and matches(service, manifest):
        return ()
    verb = "create" if service is None else "correct"
    return (ApplyService(manifest=manifest, message=f"{verb} Service {manifest['metadata']['name']}"),)


def plan_service_removal(service: ServiceRecord) -> tuple[Action, ...]:
    """Remove a Service that has no pods left, if it is ours."""
    if not is_ours(service) or service.meta.deleting is not None:
        return ()
    return (DeleteService(service=service, message=f"delete Service {service.meta.name}: its pods are gone"),)
