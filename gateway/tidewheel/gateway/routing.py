"""From a model's name to a version: the table in force, a pin, the split."""

from dataclasses import dataclass, field
from datetime import datetime

from tidewheel.gateway.cohorts import PINNED, REST, cohort_of
from tidewheel.gateway.errors import model_not_found, no_routing_table, version_not_available
from tidewheel.gateway.replicas import Fleet
from tidewheel.gateway.snapshot import ModelKey, Snapshot, Table, VersionKey
from tidewheel.gateway.split import choose_version


@dataclass(frozen=True, slots=True)
class Route:
    """Where one request goes. ``key`` owns the replicas and the metrics."""

    table: Table
    version: str
    pinned: bool
    cohort: str = REST
    """Which part of a comparison of versions it is."""
    key: VersionKey = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", VersionKey(*self.table.key, self.version))


class Router:
    """The snapshot in force and the replicas that follow it."""

    def __init__(self, fleet: Fleet, *, namespace: str) -> None:
        self.fleet = fleet
        self.snapshot: Snapshot | None = None
        self._namespace = namespace

    def apply(self, snapshot: Snapshot) -> None:
        """Obey a snapshot from now on; streams that began under another one finish where they are."""
        self.snapshot = snapshot
        self.fleet.apply(snapshot)

    def model_key(self, name: str) -> ModelKey:
        """``model`` in the default namespace, or ``namespace/model``."""
        namespace, slash, model = name.partition("/")
        return ModelKey(namespace, model) if slash else ModelKey(self._namespace, name)

    def model_names(self) -> list[str]:
        """The models that clients can name, as they would."""
        keys = sorted(self.snapshot.tables) if self.snapshot else []
        return [key.model if key.namespace == self._namespace else str(key) for key in keys]

    def serves(self, name: str) -> bool:
        """Whether the model has a table and a version that can take a request now."""
        table = (self.snapshot or Snapshot()).tables.get(self.model_key(name))
        return table is not None and any(
            weight and self.fleet.has_ready(VersionKey(*table.key, version)) for version, weight in table.weights
        )

    def table(self, name: str) -> Table:
        """The table of a model by the name a client used. Raises NotServedError."""
        key = self.model_key(name)
        snapshot = self.snapshot or Snapshot()
        table = snapshot.tables.get(key)
        if table is not None:
            return table
        if any(version.model_key == key for version in snapshot.endpoints):
            raise no_routing_table(str(key))
        raise model_not_found(name, self.model_names())

    def route(self, table: Table, *, pin: str | None, conversation: str, now: datetime) -> Route:
        """Pin first, else the split, which may name a version without replicas: its share is nobody else's.

        Raises NotServedError for a pin that cannot be honoured.
        """
        if pin is not None:
            return self._pinned(table, pin, now=now)
        version = choose_version(table.weights, salt=table.spec.salt, key=conversation)
        assert version is not None, "weights of a valid table sum to 10,000"
        return Route(table, version, pinned=False, cohort=cohort_of(table, version, conversation=conversation))

    def _pinned(self, table: Table, pin: str, *, now: datetime) -> Route:
        pinnable = table.pinnable(now)
        ready = [version for version in pinnable if self.fleet.has_ready(VersionKey(*table.key, version))]
        if pin in ready:
            return Route(table, pin, pinned=True, cohort=PINNED)
        reason = "has no ready replica" if pin in pinnable else "carries no weight and is not kept warm"
        raise version_not_available(table.spec.model, pin, reason=reason, reachable=ready)
