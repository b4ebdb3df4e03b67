"""What routing knows at one moment, as data: tables and endpoints.

The same JSON form feeds worker processes, the last-known-good file and ``--static``::

    {"tables": [RoutingTable objects], "endpoints": {"<namespace>/<model>-<version>": ["127.0.0.1:8000", ...]}}

An endpoint is an address or an object ``{uid, host, port, ready, terminating}``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from tidewheel.crds.names import GROUP_VERSION, TOTAL_BASIS_POINTS, model_version_name
from tidewheel.crds.routingtable import RoutingTableSpec, Target


class SnapshotError(Exception):
    """A table or an endpoint that cannot be used; the message names it and says what is wrong."""


class ModelKey(NamedTuple):
    """A model is known by its namespace and name."""

    namespace: str
    model: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.model}"


class VersionKey(NamedTuple):
    """A version of a model; labels of metrics, owner of replicas."""

    namespace: str
    model: str
    version: str

    @property
    def model_key(self) -> ModelKey:
        """The model it is a version of."""
        return ModelKey(self.namespace, self.model)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica as EndpointSlices tell of it; ``uid`` is the pod's, because addresses are used again."""

    uid: str
    host: str
    port: int
    ready: bool = True
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A RoutingTable object that was found valid. ``key`` is the model that it splits."""

    namespace: str
    uid: str
    generation: int
    spec: RoutingTableSpec
    wire: Mapping[str, Any]
    observed_at: str
    weights: tuple[tuple[str, int], ...] = field(init=False)
    targets: Mapping[str, Target] = field(init=False)
    key: ModelKey = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", ModelKey(self.namespace, self.spec.model))
        object.__setattr__(self, "weights", tuple((target.version, target.weight) for target in self.spec.targets))
        known = {target.version: target for target in (*self.spec.keep_warm, *self.spec.previous, *self.spec.targets)}
        object.__setattr__(self, "targets", known)

    def versions(self) -> set[str]:
        """Every version that the table names."""
        return set(self.targets)

    def pinnable(self, now: datetime) -> list[str]:
        """Versions that a pin may reach: those with weight, and those kept warm."""
        warm = [entry.version for entry in self.spec.keep_warm if parse_time(entry.until) > now]
        return list(dict.fromkeys([*(version for version, weight in self.weights if weight > 0), *warm]))

    def to_object(self) -> dict[str, Any]:
        """The object in the API server's form."""
        metadata = {
            "namespace": self.namespace,
            "name": self.spec.model,
            "uid": self.uid,
            "generation": self.generation,
        }
        return {
            "apiVersion": GROUP_VERSION,
            "kind": "RoutingTable",
            "metadata": metadata,
            "spec": self.wire,
            "observedAt": self.observed_at,
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tables and endpoints. ``stale_since`` is set while it comes from the disk and no list has confirmed it."""

    tables: Mapping[ModelKey, Table] = field(default_factory=dict)
    endpoints: Mapping[VersionKey, tuple[Endpoint, ...]] = field(default_factory=dict)
    stale_since: str | None = None

    def versions(self) -> set[VersionKey]:
        """Every version that a table names or that has endpoints."""
        named = {VersionKey(*table.key, version) for table in self.tables.values() for version in table.versions()}
        return named | set(self.endpoints)

    def to_json(self) -> dict[str, Any]:
        """The JSON form; see the module."""
        return {
            "tables": [table.to_object() for table in self.tables.values()],
            "endpoints": {
                f"{key.namespace}/{key.model}/{key.version}": [asdict(endpoint) for endpoint in endpoints]
                for key, endpoints in self.endpoints.items()
            },
            "staleSince": self.stale_since,
        }


_NOTHING: Final = Snapshot()


def parse_time(text: str) -> datetime:
    """A moment in UTC; a time without a zone is taken as UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_table(body: Mapping[str, Any], *, observed_at: str) -> Table:
    """Check one RoutingTable object. Raises SnapshotError."""
    metadata = body.get("metadata") or {}
    name = f"RoutingTable {metadata.get('namespace', 'default')}/{metadata.get('name')}"
    try:
        spec = RoutingTableSpec.model_validate(body.get("spec"))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise SnapshotError(f"{name}: spec.{path}: {first['msg']}") from None
    total = sum(target.weight for target in spec.targets)
    if total != TOTAL_BASIS_POINTS:
        raise SnapshotError(f"{name}: weights of targets sum to {total} of {TOTAL_BASIS_POINTS} basis points")
    return Table(
        namespace=str(metadata.get("namespace", "default")),
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation", 1)),
        spec=spec,
        wire=body["spec"],
        observed_at=str(body.get("observedAt", observed_at)),
    )


def parse_snapshot(body: Any, *, observed_at: str, known: Snapshot = _NOTHING) -> Snapshot:
    """Read the JSON form. Raises SnapshotError, so that a damaged file or frame is refused as a whole.

    Tables of ``known`` that have not changed are kept as they are: a change of one table costs one table.
    """
    if not isinstance(body, dict) or not isinstance(body.get("tables", []), list):
        raise SnapshotError('expected {"tables": [...], "endpoints": {...}}')
    unchanged = {(table.uid, table.generation): table for table in known.tables.values() if table.uid}
    tables = [
        unchanged.get(_identity(item)) or parse_table(item, observed_at=observed_at) for item in body.get("tables", [])
    ]
    by_key = {table.key: table for table in tables}
    names = {
        (table.namespace, model_version_name(table.spec.model, version)): VersionKey(*table.key, version)
        for table in tables
        for version in table.versions()
    }
    endpoints: dict[VersionKey, tuple[Endpoint, ...]] = {}
    for name, entries in dict(body.get("endpoints", {})).items():
        endpoints[_version_key(name, names)] = tuple(_parse_endpoints(name, entries))
    return Snapshot(tables=by_key, endpoints=endpoints, stale_since=body.get("staleSince"))


def _identity(item: Any) -> tuple[str, int]:
    metadata = item.get("metadata") or {} if isinstance(item, dict) else {}
    return str(metadata.get("uid", "")), int(metadata.get("generation", 0))


def _version_key(name: str, names: Mapping[tuple[str, str], VersionKey]) -> VersionKey:
    parts = name.split("/")
    if len(parts) == 3:
        return VersionKey(*parts)
    if len(parts) == 2 and (parts[0], parts[1]) in names:
        return names[parts[0], parts[1]]
    raise SnapshotError(f"endpoints: '{name}' is not <namespace>/<model>-<version> of a table in this file")


def _parse_endpoints(name: str, entries: Iterable[Any]) -> Iterable[Endpoint]:
    for entry in entries:
        try:
            if isinstance(entry, str):
                host, _, port = entry.rpartition(":")
                yield Endpoint(uid=entry, host=host.strip("[]"), port=int(port))
            else:
                yield Endpoint(**entry)
        except (TypeError, ValueError):
            raise SnapshotError(f"endpoints: {name}: '{entry}' is neither HOST:PORT nor an endpoint object") from None
