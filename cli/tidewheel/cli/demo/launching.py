"""Tells how the operator brings a model up: one line for every step that a pod, a version or the split takes."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.cli.errors import CliError
from tidewheel.cli.rollback.plan import describe
from tidewheel.clients.kubernetes import MODEL_VERSIONS, PODS, ROUTING_RULES, ROUTING_TABLES, KubeClient, KubeObject
from tidewheel.crds.names import MODEL_LABEL

_POLL_SECONDS: Final = 0.25

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Picture:
    """What the API server knows of one model."""

    pods: Sequence[KubeObject]
    versions: Sequence[KubeObject]
    rule: KubeObject | None
    table: KubeObject | None

    def states(self) -> dict[str, str]:
        """Each object's state in words; a changed state is a line to print."""
        states = {f"pod {pod['metadata']['name']}": pod_state(pod) for pod in self.pods}
        states |= {version["metadata"]["name"]: _version_state(version) for version in self.versions}
        if self.table is not None:
            states["traffic"] = describe(self.table["spec"]["targets"])
        return states

    def has_split(self, wanted: Mapping[str, int]) -> bool:
        """Whether the table sends traffic so, in percent, and the operator calls the rule ready."""
        if self.table is None or self.rule is None:
            return False
        shares = {t["version"]: t["weight"] for t in self.table["spec"]["targets"] if t["weight"]}
        return shares == {v: percent * 100 for v, percent in wanted.items()} and _is_ready(self.rule)

    def complaints(self) -> list[str]:
        """What the conditions say is wrong or awaited."""
        objects = [*self.versions, *([self.rule] if self.rule else [])]
        return [
            f"{item['kind']} {item['metadata']['name']}: {condition['message']}"
            for item in objects
            for condition in _conditions(item)
            if condition["type"] in {"Ready", "Degraded", "Stalled"}
            and (condition["type"] == "Ready") == (condition["status"] != "True")
        ]


async def follow(
    client: KubeClient, *, namespace: str, model: str, wanted: Mapping[str, int], say: Say, timeout_seconds: float
) -> None:
    """Prints every step until the split is in force; raises CliError with the operator's words if it takes too long."""
    started = time.monotonic()
    known: dict[str, str] = {}
    while True:
        picture = await _look(client, namespace, model)
        states = picture.states()
        for subject in sorted(states.keys() | known.keys()):
            state = states.get(subject, "gone")
            if known.get(subject) != state:
                say(f"+{time.monotonic() - started:5.1f} s  {subject}: {state}")
        known = states
        if picture.has_split(wanted):
            return
        if time.monotonic() - started > timeout_seconds:
            words = "\n  ".join(picture.complaints()) or "the operator says nothing about it"
            raise CliError(f"{model} did not get its split within {timeout_seconds:.0f} s:\n  {words}")
        await asyncio.sleep(_POLL_SECONDS)


async def _look(client: KubeClient, namespace: str, model: str) -> Picture:
    pods, versions, rules, tables = await asyncio.gather(
        client.list(PODS, namespace, label_selector=f"{MODEL_LABEL}={model}"),
        *(client.list(resource, namespace) for resource in (MODEL_VERSIONS, ROUTING_RULES, ROUTING_TABLES)),
    )
    return Picture(
        pods=pods.items,
        versions=[item for item in versions.items if item["spec"]["model"] == model],
        rule=next((item for item in rules.items if item["metadata"]["name"] == model), None),
        table=next((item for item in tables.items if item["metadata"]["name"] == model), None),
    )


def pod_state(pod: KubeObject) -> str:
    """Where an engine pod is on its way, in words."""
    status = pod.get("status", {})
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    container: dict[str, Any] = next(iter(status.get("containerStatuses", ())), {})
    state: dict[str, Any] = container.get("state", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "leaving"
    if conditions.get("Ready") == "True":
        return "ready, it has generated a token"
    if "running" in state:
        return "running, loading the weights"
    if ended := state.get("terminated") or container.get("lastState", {}).get("terminated"):
        return f"ended: {_last_words(ended)}"
    if conditions.get("PodScheduled") == "True":
        return f"scheduled on {pod['spec'].get('nodeName', '?')}, {_waiting(state)}"
    return "created"


def _last_words(ended: Mapping[str, Any]) -> str:
    lines = str(ended.get("message") or "").strip().splitlines()
    return lines[-1] if lines else f"{ended.get('reason', 'no reason given')} ({ended.get('exitCode')})"


def _waiting(state: Mapping[str, Any]) -> str:
    waiting = state.get("waiting", {})
    reason = waiting.get("reason", "ContainerCreating")
    return "its container is being made" if reason == "ContainerCreating" else f"{reason}: {waiting.get('message', '')}"


def _version_state(version: KubeObject) -> str:
    status = version.get("status") or {}
    if not status:
        return "applied"
    return f"{status.get('phase') or '-'}, {status.get('readyReplicas', 0)} of {status.get('desiredReplicas', 0)} ready"


def _is_ready(item: KubeObject) -> bool:
    ready = [condition for condition in _conditions(item) if condition["type"] == "Ready"]
    generation = item["metadata"]["generation"]
    return any(c["status"] == "True" and c.get("observedGeneration", 0) >= generation for c in ready)


def _conditions(item: KubeObject) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = (item.get("status") or {}).get("conditions", [])
    return conditions
