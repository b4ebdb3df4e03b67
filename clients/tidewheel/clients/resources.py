"""The kinds that our programs read and write, and their paths on the API server."""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tidewheel.crds.names import API_VERSION, GROUP

KubeObject = dict[str, Any]
"""An object as the API server sends it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object; ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``apiVersion`` of the objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of an object, or of a collection; without a namespace, of the collection in all of them."""
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name} needs a namespace")
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
            if subresource is not None:
                parts.append(subresource)
        return "/".join(parts)


PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
EVENTS: Final = Resource("", "v1", "events", "Event")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
SELF_SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
SELF_SUBJECT_REVIEWS: Final = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
MODEL_VERSIONS: Final = Resource(GROUP, API_VERSION, "modelversions", "ModelVersion")
ROUTING_RULES: Final = Resource(GROUP, API_VERSION, "routingrules", "RoutingRule")
ROUTING_TABLES: Final = Resource(GROUP, API_VERSION, "routingtables", "RoutingTable")
