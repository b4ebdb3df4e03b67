"""What the API server has told us, with the rules for what to believe. No I/O.

A table's generation only grows while its uid stays. A lower one is a stale answer, or a restore of etcd: it is held
back until a fresh read confirms it. What came from the disk counts until the first list of its kind and namespace.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any, Final

from tidewheel.crds.names import ENGINE_PORT_NAME, MODEL_LABEL, VERSION_LABEL
from tidewheel.gateway.snapshot import Endpoint, ModelKey, Snapshot, Table, VersionKey, parse_table

_ADDRESS_TYPES: Final = frozenset({"IPv4", "IPv6"})

SliceKey = tuple[str, str]
"""Namespace and name of an EndpointSlice."""


class Verdict(Enum):
    """What became of a table that was seen."""

    TAKEN = auto()
    UNCHANGED = auto()
    LOWER = auto()


class Catalog:
    """Tables and endpoint slices by name."""

    def __init__(self) -> None:
        self._tables: dict[ModelKey, Table] = {}
        self._slices: dict[SliceKey, tuple[VersionKey, tuple[Endpoint, ...]]] = {}
        self._remembered_tables: set[ModelKey] = set()
        self._remembered_endpoints: dict[VersionKey, tuple[Endpoint, ...]] = {}
        self._stale_since: str | None = None
        self.regressions = 0

    def remember(self, snapshot: Snapshot, *, saved_at: str) -> None:
        """Take over what an earlier run knew, where nothing newer is known."""
        self._stale_since = saved_at
        for key, table in snapshot.tables.items():
            if key not in self._tables:
                self._tables[key] = table
                self._remembered_tables.add(key)
        known = {key for key, _ in self._slices.values()}
        self._remembered_endpoints = {key: ends for key, ends in snapshot.endpoints.items() if key not in known}

    def tables_listed(self, namespace: str) -> None:
        """All tables of a namespace have been seen: what is only remembered there is gone."""
        for key in [key for key in self._remembered_tables if key.namespace == namespace]:
            self._remembered_tables.discard(key)
            del self._tables[key]

    def slices_listed(self, namespace: str) -> None:
        """All endpoint slices of a namespace have been seen."""
        remembered = self._remembered_endpoints
        self._remembered_endpoints = {key: ends for key, ends in remembered.items() if key.namespace != namespace}

    def all_listed(self) -> None:
        """Nothing is stale any more."""
        self._stale_since = None

    def put_table(self, body: Mapping[str, Any], *, observed_at: str, confirmed: bool = False) -> Verdict:
        """A table was seen. Raises SnapshotError for one that is not valid; the last valid one stays in force."""
        table = parse_table(body, observed_at=observed_at)
        held = self._tables.get(table.key)
        self._remembered_tables.discard(table.key)
        if held is not None and held.uid == table.uid:
            if table.generation == held.generation:
                return Verdict.UNCHANGED
            if table.generation < held.generation:
                if not confirmed:
                    return Verdict.LOWER
                self.regressions += 1
        self._tables[table.key] = table
        return Verdict.TAKEN

    def drop_table(self, key: ModelKey) -> None:
        """A table was deleted."""
        self._tables.pop(key, None)

    def generation(self, key: ModelKey) -> tuple[str, int] | None:
        """uid and generation of the table held."""
        table = self._tables.get(key)
        return None if table is None else (table.uid, table.generation)

    def put_slice(self, body: Mapping[str, Any]) -> None:
        """An endpoint slice was seen; one without our labels is not ours."""
        metadata = body["metadata"]
        name: SliceKey = (metadata["namespace"], metadata["name"])
        labels = metadata.get("labels") or {}
        model, version = labels.get(MODEL_LABEL), labels.get(VERSION_LABEL)
        if not model or not version or body.get("addressType") not in _ADDRESS_TYPES:
            self._slices.pop(name, None)
            return
        key = VersionKey(metadata["namespace"], model, version)
        self._remembered_endpoints.pop(key, None)
        self._slices[name] = (key, tuple(_endpoints(body)))

    def drop_slice(self, name: SliceKey) -> None:
        """An endpoint slice was deleted."""
        self._slices.pop(name, None)

    def snapshot(self) -> Snapshot:
        """Everything believed now."""
        merged: dict[VersionKey, dict[str, Endpoint]] = {}
        for key, endpoints in (*self._remembered_endpoints.items(), *self._slices.values()):
            known = merged.setdefault(key, {})
            for endpoint in endpoints:
                # A pod may be in two slices for a moment; either may be the newer one.
                if endpoint.uid not in known or endpoint.ready:
                    known[endpoint.uid] = endpoint
        ends = {key: tuple(known.values()) for key, known in merged.items()}
        return Snapshot(tables=dict(self._tables), endpoints=ends, stale_since=self._stale_since)


def _endpoints(body: Mapping[str, Any]) -> Iterable[Endpoint]:
    ports = body.get("ports") or []
    port = next((item["port"] for item in ports if item.get("name") == ENGINE_PORT_NAME), None)
    if port is None:
        return
    for item in body.get("endpoints") or []:
        addresses = item.get("addresses") or []
        if not addresses:
            continue
        conditions = item.get("conditions") or {}
        uid = (item.get("targetRef") or {}).get("uid") or f"{addresses[0]}:{port}"
        # The API's rule: an absent "ready" means ready.
        ready = conditions.get("ready") is not False
        yield Endpoint(uid, addresses[0], int(port), ready=ready, terminating=bool(conditions.get("terminating")))
