"""The cache: what watch streams, our own lists and our own writes have shown, by model.

Every source may be behind another, so a record replaces one of the same object only if its resource version is newer
(Kubernetes compares them as numbers since 1.35). Our own writes go in as well: a reconcile sees what the last one did.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, TypeVar

from tidewheel.clients.resources import MODEL_VERSIONS, PODS, ROUTING_RULES, ROUTING_TABLES, SERVICES, Resource
from tidewheel.operator.planning.records import (
    AnyRecord,
    LoadReading,
    ModelKey,
    Picture,
    PodRecord,
    RuleRecord,
    ServiceRecord,
    TableRecord,
    VersionRecord,
    gpus_of,
)
from tidewheel.operator.scaling.advice import ModelAdvice

WATCHED: Final = (MODEL_VERSIONS, ROUTING_RULES, ROUTING_TABLES, PODS, SERVICES)
TOMBSTONES: Final = 10_000

Name = tuple[str, str]
_Record = TypeVar("_Record", VersionRecord, RuleRecord, TableRecord, PodRecord, ServiceRecord)


class Cache:
    """Records by kind and model. ``on_change`` is called with the key of every model whose picture changed."""

    def __init__(self, on_change: Callable[[ModelKey], None]) -> None:
        self._on_change = on_change
        self.advice: Callable[[ModelKey], ModelAdvice | None] = lambda _: None
        """What the scaling loop says of a model; the loop itself reads this cache, so it comes later."""
        self.gpu_budget: int | None = None
        """GPUs of all models together; None: nobody said."""
        self._records: dict[Resource, dict[Name, AnyRecord]] = {resource: {} for resource in WATCHED}
        self._names: dict[Resource, dict[ModelKey, set[Name]]] = {resource: {} for resource in WATCHED}
        self._deleted: dict[str, int] = {}
        self._newest: dict[Resource, int] = dict.fromkeys(WATCHED, 0)

    def keys(self) -> set[ModelKey]:
        """Every model of which anything is known."""
        return {key for names in self._names.values() for key in names}

    def count(self, resource: Resource) -> int:
        """Number of records of a kind."""
        return len(self._records[resource])

    def observe(self, resource: Resource, record: AnyRecord) -> None:
        """Take a record in, unless a newer one of the same object is known, or that it was deleted since."""
        version = _number(record.meta.resource_version)
        self._newest[resource] = max(self._newest[resource], version)
        name = (record.meta.namespace, record.meta.name)
        known = self._records[resource].get(name)
        if self._deleted.get(record.meta.uid, -1) >= version:
            return
        if known is not None:
            older = known.meta.uid == record.meta.uid and version < _number(known.meta.resource_version)
            if older or known == record:
                return
            self._forget(resource, name, known)
        self._records[resource][name] = record
        self._names[resource].setdefault(record.key, set()).add(name)
        self._on_change(record.key)

    def observe_deleted(self, resource: Resource, record: AnyRecord) -> None:
        """The object is gone; ``record`` is its last state."""
        self._bury(record.meta.uid, _number(record.meta.resource_version))
        name = (record.meta.namespace, record.meta.name)
        known = self._records[resource].get(name)
        if known is not None and known.meta.uid == record.meta.uid:
            self._forget(resource, name, known)
            self._on_change(known.key)

    def replace(self, resource: Resource, namespace: str | None, records: Iterable[AnyRecord], version: str) -> int:
        """A full list of a kind, in one namespace or in all: what it lacks is gone. Returns how many were missed.

        A list older than what is known means that the cluster's storage was restored: the list is the truth.
        """
        listed = {(record.meta.namespace, record.meta.name): record for record in records}
        at = _number(version)
        restored = at < self._newest[resource]
        if restored:
            self._newest[resource] = at
            self._deleted.clear()
        missed = 0
        for name, known in list(self._records[resource].items()):
            if namespace is not None and name[0] != namespace:
                continue
            other = name not in listed or listed[name].meta.uid != known.meta.uid
            if restored or (other and _number(known.meta.resource_version) <= at):
                missed += other
                self._forget(resource, name, known)
                self._on_change(known.key)
        for record in listed.values():
            self.observe(resource, record)
        return missed

    def replace_of_model(self, resource: Resource, key: ModelKey, records: Iterable[AnyRecord]) -> None:
        """A live list of one model's objects of a kind: what it lacks is gone."""
        listed = {(record.meta.namespace, record.meta.name): record for record in records}
        for namespace, name in self._names[resource].get(key, set()) - set(listed):
            self.remove(resource, namespace, name)
        for record in listed.values():
            self.observe(resource, record)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """A live read says that there is no such object."""
        known = self._records[resource].get((namespace, name))
        if known is not None:
            self._forget(resource, (namespace, name), known)
            self._on_change(known.key)

    def picture(self, key: ModelKey, *, now: datetime, loads: Mapping[str, LoadReading]) -> Picture:
        """All that is known of one model."""
        return Picture(
            key=key,
            now=now,
            versions={record.version: record for record in self._of(VersionRecord, MODEL_VERSIONS, key)},
            rule=next(iter(self._of(RuleRecord, ROUTING_RULES, key)), None),
            table=next(iter(self._of(TableRecord, ROUTING_TABLES, key)), None),
            pods=tuple(self._of(PodRecord, PODS, key)),
            services={record.version: record for record in self._of(ServiceRecord, SERVICES, key)},
            loads=loads,
            advice=self.advice(key),
            gpus_free=self.gpus_free,
        )

    def gpus_free(self) -> int | None:
        """What replicas that are here to stay leave of the budget."""
        if self.gpu_budget is None:
            return None
        each = {
            (version.key, version.version): gpus_of(version)
            for version in self._records[MODEL_VERSIONS].values()
            if isinstance(version, VersionRecord)
        }
        pods = [pod for pod in self._records[PODS].values() if isinstance(pod, PodRecord) and pod.is_live]
        return self.gpu_budget - sum(each.get((pod.key, pod.version), 1) for pod in pods)

    def _of(self, kind: type[_Record], resource: Resource, key: ModelKey) -> list[_Record]:
        found = [self._records[resource][name] for name in sorted(self._names[resource].get(key, ()))]
        return [record for record in found if isinstance(record, kind)]

    def _forget(self, resource: Resource, name: Name, known: AnyRecord) -> None:
        del self._records[resource][name]
        names = self._names[resource][known.key]
        names.discard(name)
        if not names:
            del self._names[resource][known.key]

    def _bury(self, uid: str, version: int) -> None:
        """Remember a deletion for a while, so that a late report of an earlier state does not bring the object back."""
        self._deleted[uid] = version
        if len(self._deleted) > TOMBSTONES:
            del self._deleted[next(iter(self._deleted))]


def _number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdecimal() else 0
