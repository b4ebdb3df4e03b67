"""What a request to the API server asks for: verb, resource, name, as RBAC and audit logs spell them."""

from dataclasses import dataclass
from typing import Final

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}
_REVIEWS: Final = ("authorization.k8s.io", "authentication.k8s.io")


@dataclass(slots=True, kw_only=True)
class ApiCall:
    """One request seen by the proxy. ``status`` is the API server's answer; None if it was not asked, or said none."""

    method: str
    path: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user_agent: str
    authorization: str = ""
    status: int | None = None

    @property
    def is_write(self) -> bool:
        """Whether it changes stored objects; access reviews do not."""
        return self.verb in {"create", "update", "patch", "delete", "deletecollection"} and self.group not in _REVIEWS

    def __str__(self) -> str:
        target = "/".join(part for part in (self.resource, self.namespace, self.name, self.subresource) if part)
        return f"{self.verb} {target or self.path} -> {self.status}"


def parse_call(*, method: str, path: str, watching: bool, user_agent: str, authorization: str) -> ApiCall:
    """The call behind a method and a path; paths outside /api and /apis have no resource."""
    parts = [part for part in path.split("/") if part]
    group = resource = namespace = name = subresource = ""
    rest: list[str] = []
    if parts[:1] == ["api"]:
        rest = parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 2:
        group, rest = parts[1], parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if rest:
        resource, name, subresource = (*rest[:2], "/".join(rest[2:])) if len(rest) > 1 else (rest[0], "", "")
    verb = _VERBS.get(method, method.lower())
    if watching:
        verb = "watch"
    elif not name and verb in {"get", "delete"} and resource:
        verb = {"get": "list", "delete": "deletecollection"}[verb]
    return ApiCall(
        method=method,
        path=path,
        verb=verb,
        group=group,
        resource=resource,
        subresource=subresource,
        namespace=namespace,
        name=name,
        user_agent=user_agent,
        authorization=authorization,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which calls a fault speaks of; what is left empty matches everything. ``user_agent`` is a prefix."""

    verbs: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    subresource: str | None = None
    namespace: str = ""
    name: str = ""
    user_agent: str = ""
    writes_only: bool = False

    def __call__(self, call: ApiCall) -> bool:
        return (
            (not self.verbs or call.verb in self.verbs)
            and (not self.resources or call.resource in self.resources)
            and call.resource not in self.excluded
            and self.subresource in {None, call.subresource}
            and self.namespace in {"", call.namespace}
            and self.name in {"", call.name}
            and call.user_agent.startswith(self.user_agent)
            and (call.is_write or not self.writes_only)
        )


def calls(*verbs: str, resource: str = "", name: str = "", user_agent: str = "") -> Match:
    """Shorthand: ``calls("list", "watch", resource="pods")``."""
    resources = frozenset({resource}) if resource else frozenset()
    return Match(verbs=frozenset(verbs), resources=resources, name=name, user_agent=user_agent)


ALL_WRITES: Final = Match(writes_only=True)
WRITES: Final = Match(writes_only=True, excluded=frozenset({"leases", "events"}))
"""Every write that changes the world: not a leader's lease, not an Event for people."""
