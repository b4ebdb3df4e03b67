"""One namespace with a stand-in kubelet, a fault proxy, and operators as real programs."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from tests import waiting
from tests.faults.proxy import ApiProxy
from tests.operator.kubelet import Kubelet

from tidewheel.clients.errors import NotFound
from tidewheel.clients.kubernetes import (
    MODEL_VERSIONS,
    PODS,
    ROUTING_RULES,
    ROUTING_TABLES,
    SERVICES,
    KubeClient,
    KubeObject,
    Resource,
)
from tidewheel.crds.names import SERVING_GATE, VERSION_LABEL

DEADLINE_SECONDS = 90.0

FAST = {
    "lease-seconds": "3",
    "renew-deadline-seconds": "2.5",
    "lease-retry-seconds": "0.2",
    "list-seconds": "5",
    "watch-silence-seconds": "4",
    "watch-restart-seconds": "0.1",
    "backoff-seconds": "0.05",
    "backoff-limit-seconds": "1",
    "drain-propagation-seconds": "0.2",
    "load-poll-seconds": "0.1",
    "min-ready-seconds": "0.1",
    "replace-backoff-seconds": "0.1",
    "stop-seconds": "3",
}


class OperatorProcess:
    """One operator as a program. Its log is kept for the test's report."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, now."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def wait(self, timeout_seconds: float = waiting.PATIENCE_SECONDS) -> int:
        """The exit code."""
        return self._process.wait(timeout_seconds)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def url(self) -> str:
        """Where its /healthz is; raises LookupError until it is known."""
        found = re.search(r'"port":(\d+)', self.log.read_text())
        if found is None:
            raise LookupError("no port in the log yet")
        return f"http://127.0.0.1:{found[1]}"


class World:
    """What a test of the operator needs; made by the ``world`` fixture."""

    def __init__(self, *, client: KubeClient, namespace: str, proxy: ApiProxy, kubelet: Kubelet, folder: Path) -> None:
        self.client = client
        self.namespace = namespace
        self.proxy = proxy
        self.kubelet = kubelet
        self._folder = folder
        self.operators: list[OperatorProcess] = []

    def start_operator(self, *, kubeconfig: Path | None = None, **settings: str) -> OperatorProcess:
        """One more operator; by default it goes through the fault proxy, as administrator."""
        number = len(self.operators)
        kubeconfig = kubeconfig or self.proxy.write_kubeconfig(self._folder / "proxy.kubeconfig")
        flags = {
            **FAST,
            "kubeconfig": str(kubeconfig),
            "serving-namespaces": self.namespace,
            "namespace": self.namespace,
            "host": "127.0.0.1",
            "port": "0",
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "tidewheel.operator", *(f"--{name}={value}" for name, value in flags.items())]
        started = OperatorProcess(command, self._folder / f"operator-{number}.log")
        self.operators.append(started)
        return started

    def stop_operators(self) -> None:
        for operator in self.operators:
            operator.kill()
        for operator in self.operators:
            operator.wait()

    async def apply_version(self, version: str, *, model: str = "chat", **spec: Any) -> KubeObject:
        """Create or change a ModelVersion."""
        return await self.client.apply(
            MODEL_VERSIONS, model_version(self.namespace, version, model=model, **spec), force=True
        )

    async def apply_rule(self, *, model: str = "chat", keep_previous_seconds: int = 900, **percents: int) -> KubeObject:
        """Create or change the RoutingRule."""
        body = {
            "metadata": {"name": model, "namespace": self.namespace},
            "spec": {
                "model": model,
                "traffic": [{"version": version, "percent": percent} for version, percent in percents.items()],
                "rollout": {"keepPreviousSeconds": keep_previous_seconds},
            },
        }
        return await self.client.apply(ROUTING_RULES, body, force=True)

    async def delete(self, resource: Resource, name: str, *, propagation: str = "Background") -> None:
        """Delete as kubectl does. What the garbage collector does for an object without dependents is done here."""
        await self.client.delete(resource, name, self.namespace, propagation=propagation)
        left = await self.find(resource, name)
        if left is not None and "foregroundDeletion" in left["metadata"]["finalizers"]:
            kept = [each for each in left["metadata"]["finalizers"] if each != "foregroundDeletion"]
            await self.client.patch_merge(resource, name, self.namespace, {"metadata": {"finalizers": kept}})

    async def pods(self, version: str | None = None) -> list[KubeObject]:
        """The pods, of one version or of all."""
        selector = f"{VERSION_LABEL}={version}" if version else None
        return (await self.client.list(PODS, self.namespace, label_selector=selector)).items

    async def serving_pods(self, version: str) -> list[str]:
        """Names of the pods that are ready and stay."""
        return sorted(
            pod["metadata"]["name"]
            for pod in await self.pods(version)
            if "deletionTimestamp" not in pod["metadata"] and condition(pod, "Ready") == "True"
        )

    async def find(self, resource: Resource, name: str) -> KubeObject | None:
        """An object, or None."""
        try:
            return await self.client.get(resource, name, self.namespace)
        except NotFound:
            return None

    async def split(self, model: str = "chat") -> dict[str, int]:
        """The split in force."""
        table = await self.find(ROUTING_TABLES, model)
        return {target["version"]: target["weight"] for target in table["spec"]["targets"]} if table else {}

    async def version_condition(self, name: str, kind: str) -> Mapping[str, Any]:
        """A condition of a ModelVersion; empty if there is none, or if it is not of the present generation."""
        return status_condition(await self.find(MODEL_VERSIONS, name), kind)

    async def rule_condition(self, name: str, kind: str) -> Mapping[str, Any]:
        """A condition of a RoutingRule."""
        return status_condition(await self.find(ROUTING_RULES, name), kind)

    async def settled(self, split: Mapping[str, int], **replicas: int) -> bool:
        """Exactly these replicas serve, nothing else is left, and exactly this split is in force."""
        pods = await self.pods()
        for version, count in replicas.items():
            assert len(await self.serving_pods(version)) == count, f"{version}: {await self.serving_pods(version)}"
        assert len(pods) == sum(replicas.values()), f"pods: {sorted(pod['metadata']['name'] for pod in pods)}"
        assert await self.split() == split, f"split: {await self.split()}"
        return True

    async def services(self) -> list[str]:
        return sorted(item["metadata"]["name"] for item in (await self.client.list(SERVICES, self.namespace)).items)

    async def fetch(self, operator: OperatorProcess, path: str) -> tuple[int, str]:
        """Status and body of one of the operator's own pages."""
        async with aiohttp.ClientSession() as session, session.get(operator.url() + path) as answer:
            return answer.status, await answer.text()

    def report(self) -> str:
        """The operators' logs, for a failing test."""
        return "\n".join(f"--- {each.log.name}\n{each.log.read_text()[-6000:]}" for each in self.operators)


NewWorld = Callable[[], contextlib.AbstractAsyncContextManager[World]]


def model_version(namespace: str, version: str, *, model: str = "chat", **spec: Any) -> KubeObject:
    """A small ModelVersion; ``spec`` replaces top-level fields."""
    return {
        "metadata": {"name": f"{model}-{version}", "namespace": namespace},
        "spec": {
            "model": model,
            "version": version,
            "artifact": {"uri": "file:///models/smollm2"},
            "engine": {"image": "tidewheel:dev"},
            "drain": {"timeoutSeconds": 30},
            **spec,
        },
    }


def condition(pod: KubeObject, kind: str) -> str:
    """Status of a pod's condition, or nothing."""
    for entry in (pod.get("status") or {}).get("conditions") or ():
        if entry["type"] == kind:
            return str(entry["status"])
    return ""


def status_condition(body: KubeObject | None, kind: str) -> Mapping[str, Any]:
    """A condition that speaks of the object's present generation, or nothing."""
    for entry in ((body or {}).get("status") or {}).get("conditions") or ():
        if body is not None and entry["type"] == kind and entry["observedGeneration"] == body["metadata"]["generation"]:
            return dict(entry)
    return {}


def is_draining(pod: KubeObject) -> bool:
    return condition(pod, SERVING_GATE) == "False"


async def eventually(check: Callable[[], Awaitable[object]], what: str, *, within: float = DEADLINE_SECONDS) -> None:
    """Wait until ``check`` is true and raises no AssertionError; objects that are not there yet count as not yet."""
    trouble = ""

    async def holds() -> object:
        nonlocal trouble
        try:
            return await check()
        except (AssertionError, LookupError, NotFound) as error:
            trouble = f"; {error}"
            return False

    try:
        await waiting.eventually(holds, within_seconds=within, every=0.05, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}{trouble}") from None


@contextlib.asynccontextmanager
async def reported(world: World) -> AsyncIterator[None]:
    """Add the operators' logs to a failure."""
    try:
        yield
    except AssertionError as error:
        error.add_note(world.report())
        raise
