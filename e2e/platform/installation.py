"""One installed release, and what tests ask of it. The oracle is kubectl, not our own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from e2e.platform.models import Model
from tests.waiting import eventually

from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.local_images import REDIS_VALUES
from tidewheel.cli.cluster.providers import Cluster

RELEASE_NAMESPACE = "tidewheel-system"
SERVING_NAMESPACE = "serving"


class Installation:
    """`kubectl` speaks of the serving namespace unless told otherwise."""

    def __init__(self, cluster: Cluster, chart: Path) -> None:
        self.cluster = cluster
        self._chart = chart
        self._gateway_url: str | None = None

    def install(self) -> None:
        self.cluster.kubectl("create", "namespace", SERVING_NAMESPACE)
        values = (f"servingNamespaces={{{SERVING_NAMESPACE}}}", "gateway.resources.requests.cpu=50m")
        store = REDIS_VALUES if isinstance(self.cluster, LocalCluster) else ("--set", "redis.embedded=true")
        self._helm("install", "--create-namespace", *store, values=values)

    def upgrade(self, *values: str) -> None:
        """Change these values of the chart; the others stay as they are."""
        self._helm("upgrade", "--reset-then-reuse-values", values=values)

    def _helm(self, verb: str, *flags: str, values: Sequence[str]) -> None:
        sets = [part for value in values for part in ("--set", value)]
        self.cluster.helm(
            verb, "tidewheel", str(self._chart), "--namespace", RELEASE_NAMESPACE, *flags, "--wait",
            "--timeout", "240s", *sets,
        )  # fmt: skip

    def uninstall(self) -> None:
        self.kubectl("delete", "routingrules,modelversions", "--all", "--wait=false")
        self.cluster.helm("uninstall", "tidewheel", "--namespace", RELEASE_NAMESPACE)

    @property
    def gateway_url(self) -> str:
        """The gateway's Service; nodes are of this host, so its cluster address answers here."""
        if self._gateway_url is None:
            service = self.get("service", "tidewheel-gateway", namespace=RELEASE_NAMESPACE)
            self._gateway_url = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"
        return self._gateway_url

    def kubectl(self, *arguments: str, stdin: str | None = None, namespace: str = SERVING_NAMESPACE) -> str:
        return self.cluster.kubectl(f"--namespace={namespace}", *arguments, stdin=stdin)

    def get(self, *what: str, namespace: str = SERVING_NAMESPACE) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *what, "--output=json", namespace=namespace))
        return found

    def apply(self, *objects: Mapping[str, Any]) -> None:
        body = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(body))

    def pods(self, model: Model, version: str | None = None) -> list[dict[str, Any]]:
        selector = f"tidewheel.dev/model={model.name}" + (f",tidewheel.dev/version={version}" if version else "")
        items: list[dict[str, Any]] = self.get("pods", f"--selector={selector}")["items"]
        return items

    def pod_uids(self, model: Model) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(model)}

    def weights(self, model: Model) -> dict[str, int]:
        """The split in force, from the table itself."""
        tables = self.get("routingtables", f"--field-selector=metadata.name={model.name}")["items"]
        return {t["version"]: t["weight"] for table in tables for t in table["spec"]["targets"] if t["weight"]}

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        conditions = self.get(kind, name).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), {})

    @asynccontextmanager
    async def without_operators(self) -> AsyncIterator[None]:
        """No operator runs inside the block; at its end two are back."""
        deployment = "deployment/tidewheel-operator"
        self.kubectl("scale", deployment, "--replicas=0", namespace=RELEASE_NAMESPACE)
        try:
            await eventually(
                lambda: (
                    not self.get(
                        "pods", "--selector=app.kubernetes.io/component=operator", namespace=RELEASE_NAMESPACE
                    )["items"]
                ),
                within_seconds=60,
                every=0.5,
                what="no operator is left",
            )
            yield
        finally:
            self.kubectl("scale", deployment, "--replicas=2", namespace=RELEASE_NAMESPACE)
            self.kubectl("rollout", "status", deployment, "--timeout=60s", namespace=RELEASE_NAMESPACE)

    async def serve(self, model: Model, split: Mapping[str, int], *, within_seconds: float = 90) -> None:
        """Apply the model's versions and rule, and wait until gateways obey the split."""
        self.apply(*(model.version(name) for name in split), model.rule(split))
        await self.has_split(model, split, within_seconds=within_seconds)

    async def has_split(self, model: Model, split: Mapping[str, int], *, within_seconds: float = 90) -> None:
        wanted = {version: percent * 100 for version, percent in split.items() if percent}
        await eventually(
            lambda: self.weights(model) == wanted,
            within_seconds=within_seconds,
            every=0.5,
            what=f"{model.name}: {split}",
        )
