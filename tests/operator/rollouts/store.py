"""Objects in memory under the rules of the API server that the reconciler leans on, for histories by the thousand.

Resource versions grow with each write, a stale one is a Conflict, a create of a name that exists is refused, a spec
that changes gets a generation, server-side apply of a status removes what its manager no longer names. What this
leaves out is tested on a real API server (`tests/operator`, `e2e`).
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from tidewheel.clients.errors import AlreadyExists, ApiError, Conflict, NotFound, ServerUnavailable
from tidewheel.clients.kubernetes import ObjectList
from tidewheel.clients.resources import NAMESPACES, KubeObject, Resource
from tidewheel.operator.moments import format_moment


class OperatorDiedError(Exception):
    """After a write, before anything else."""


class Store:
    """Stands in for KubeClient. What it gives out is never changed, only replaced."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._objects: dict[tuple[Resource, str, str], KubeObject] = {}
        self._version = 100
        self._applied: dict[tuple[str, str], set[str]] = {}
        self.down = False
        self.writes = 0
        self.die_after: int | None = None
        self.on_write: Callable[[Resource, KubeObject], None] = lambda _resource, _body: None

    def all(self, resource: Resource) -> list[KubeObject]:
        return [body for (kind, _, _), body in self._objects.items() if kind == resource]

    def find(self, resource: Resource, name: str, namespace: str) -> KubeObject | None:
        return self._objects.get((resource, namespace, name))

    def put(self, resource: Resource, body: KubeObject) -> None:
        """A person's or a kubelet's write: no preconditions, no faults."""
        self._store(resource, body)

    def remove(self, resource: Resource, name: str, namespace: str) -> None:
        self._objects.pop((resource, namespace, name), None)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> KubeObject:
        self._check()
        if resource == NAMESPACES:
            return {"metadata": {"name": name}}
        found = self.find(resource, name, namespace or "")
        if found is None:
            raise _error(NotFound, 404)
        return found

    async def list(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str | None = None
    ) -> ObjectList:
        self._check()
        wanted = dict(part.split("=") for part in (label_selector or "").split(",") if "=" in part)
        items = [
            body
            for body in self.all(resource)
            if all((body["metadata"].get("labels") or {}).get(key) == value for key, value in wanted.items())
        ]
        return ObjectList(items=items, resource_version=str(self._version))

    async def create(self, resource: Resource, body: KubeObject) -> KubeObject:
        self._check()
        metadata = body["metadata"]
        if self.find(resource, metadata["name"], metadata.get("namespace", "")) is not None:
            raise _error(AlreadyExists, 409)
        return self._written(resource, body)

    async def apply(self, resource: Resource, body: KubeObject, **_: Any) -> KubeObject:
        self._check()
        metadata = body["metadata"]
        found = self.find(resource, metadata["name"], metadata.get("namespace", "")) or {"metadata": {}}
        return self._written(resource, _merged(found, body))

    async def apply_status(
        self, resource: Resource, body: KubeObject, *, field_manager: str | None = None, force: bool = False
    ) -> KubeObject:
        self._check()
        del force
        found = self._expected(resource, body["metadata"])
        owner = (found["metadata"]["uid"], field_manager or "")
        status = {**found.get("status", {})}
        for name in self._applied.get(owner, set()) - body["status"].keys():
            status.pop(name, None)
        self._applied[owner] = set(body["status"])
        return self._written(resource, {**found, "status": {**status, **body["status"]}})

    async def patch_merge(
        self, resource: Resource, name: str, namespace: str | None, patch: KubeObject, **_: Any
    ) -> KubeObject:
        self._check()
        found = self._expected(resource, {"name": name, "namespace": namespace, **patch.get("metadata", {})})
        return self._written(resource, _merged(found, patch))

    async def patch_strategic(
        self, resource: Resource, name: str, namespace: str | None, patch: KubeObject, **_: Any
    ) -> KubeObject:
        self._check()
        found = self._expected(resource, {"name": name, "namespace": namespace, **patch.get("metadata", {})})
        conditions = {entry["type"]: entry for entry in found.get("status", {}).get("conditions", [])}
        conditions |= {entry["type"]: entry for entry in patch["status"]["conditions"]}
        return self._written(resource, _merged(found, {"status": {"conditions": list(conditions.values())}}))

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None, **_: Any
    ) -> None:
        self._check()
        found = self.find(resource, name, namespace or "")
        if found is None:
            raise _error(NotFound, 404)
        if uid is not None and found["metadata"]["uid"] != uid:
            raise _error(Conflict, 409)
        self.remove(resource, name, namespace or "")
        self._count()

    def _check(self) -> None:
        if self.down:
            raise _error(ServerUnavailable, 503)

    def _expected(self, resource: Resource, metadata: KubeObject) -> KubeObject:
        found = self.find(resource, metadata["name"], metadata.get("namespace") or "")
        if found is None:
            raise _error(NotFound, 404)
        for key in ("uid", "resourceVersion"):
            if metadata.get(key) not in (None, found["metadata"][key]):
                raise _error(Conflict, 409)
        return found

    def _written(self, resource: Resource, body: KubeObject) -> KubeObject:
        stored = self._store(resource, body)
        self.on_write(resource, stored)
        self._count()
        return stored

    def _count(self) -> None:
        self.writes += 1
        if self.die_after is not None and self.writes >= self.die_after:
            self.die_after = None
            raise OperatorDiedError

    def _store(self, resource: Resource, body: KubeObject) -> KubeObject:
        metadata = body["metadata"]
        key = (resource, metadata.get("namespace") or "", metadata["name"])
        before = self._objects.get(key)
        self._version += 1
        known = before["metadata"] if before is not None else {}
        metadata = {
            **metadata,
            "uid": known.get("uid") or f"uid-{metadata['name']}-{self._version}",
            "creationTimestamp": known.get("creationTimestamp") or format_moment(self._now()),
            "resourceVersion": str(self._version),
            "generation": known.get("generation", 0) + (before is None or before.get("spec") != body.get("spec")),
        }
        self._objects[key] = {**body, "metadata": metadata}
        return self._objects[key]


def _merged(base: KubeObject, patch: KubeObject) -> KubeObject:
    """JSON merge patch."""
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = value
    return result


def _error(kind: type[ApiError], status: int) -> ApiError:
    return kind(status, kind.__name__, kind.__name__, call="test")
