"""A stand-in for scheduler and kubelet: it moves pods of one namespace through their lives, through the real API only.

Engines answer ``/load`` and ``/drain`` on an address of their own, with as many streams as the test says.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from tests.faults.looped import Looped

from tidewheel.clients.errors import ApiError
from tidewheel.clients.kubernetes import PODS, Access, KubeClient, KubeObject
from tidewheel.crds.names import ENGINE_PORT, SERVING_GATE, VERSION_LABEL

_ADDRESSES = itertools.count(1)


@dataclass(slots=True)
class Behaviour:
    """What becomes of the pods of a version."""

    load_seconds: float = 0.0
    unschedulable: str = ""
    """The scheduler's words; the pod gets no node."""
    waiting: tuple[str, str] | None = None
    """Reason and message of a container that cannot be started."""
    exits: tuple[int, str] | None = None
    """Exit code and last words of a container that ends again and again."""
    confirms_deletion: bool = True
    """False: its node has vanished."""
    stop_seconds: float = 0.0


@dataclass(slots=True)
class Engine:
    """The engine of one pod."""

    streams: int = 0
    draining: bool = False
    drains: int = 0
    answers: bool = True


@dataclass(slots=True)
class _Pod:
    seen: float
    address: str
    deleting_since: float | None = None
    engine: Engine = field(default_factory=Engine)


class Kubelet(Looped):
    """Use as a context manager; ``behaviours`` by version name, ``engines`` by pod name."""

    def __init__(self, access: Access, namespace: str) -> None:
        super().__init__()
        self._access = access
        self._namespace = namespace
        self._task: asyncio.Task[None] | None = None
        self._runners: list[web.AppRunner] = []
        self._pods: dict[str, _Pod] = {}
        self.behaviours: dict[str, Behaviour] = {}
        self.engines: dict[str, Engine] = {}
        self.history: set[str] = set()
        """Names of every pod that ever was."""
        self.most_at_once: dict[str, int] = {}
        """The most live pods of a version that were seen at one moment."""
        self.places: int | None = None
        """Pods that find a node at one time; None: all of them."""
        self.errors: list[Exception] = []

    def __enter__(self) -> "Kubelet":
        super().__enter__()
        self.run(self._start())
        return self

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()

    async def _start(self) -> None:
        self._task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        async with KubeClient(self._access, user_agent="test-kubelet") as client:
            while True:
                try:
                    pods = (await client.list(PODS, self._namespace)).items
                    self._count(pods)
                    placed = sum(bool(pod["spec"].get("nodeName")) for pod in pods)
                    for pod in pods:
                        if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                            if self.places is not None and placed >= self.places:
                                continue
                            placed += 1
                        await self._attend(client, pod, loop.time())
                except ApiError as error:
                    self.errors.append(error)
                await asyncio.sleep(0.05)

    def _count(self, pods: list[KubeObject]) -> None:
        live: dict[str, int] = {}
        for pod in pods:
            self.history.add(pod["metadata"]["name"])
            gate = _condition(pod, SERVING_GATE)
            if "deletionTimestamp" not in pod["metadata"] and (gate is None or gate["status"] != "False"):
                version = pod["metadata"].get("labels", {}).get(VERSION_LABEL, "")
                live[version] = live.get(version, 0) + 1
        for version, count in live.items():
            self.most_at_once[version] = max(count, self.most_at_once.get(version, 0))

    async def _attend(self, client: KubeClient, pod: KubeObject, now: float) -> None:
        metadata = pod["metadata"]
        uid, name = metadata["uid"], metadata["name"]
        behaviour = self.behaviours.get(metadata.get("labels", {}).get(VERSION_LABEL, ""), Behaviour())
        if uid not in self._pods:
            number = next(_ADDRESSES)
            self._pods[uid] = _Pod(now, f"127.77.{number // 250}.{number % 250 + 1}")
            self.engines[name] = self._pods[uid].engine
        known = self._pods[uid]
        if "deletionTimestamp" in metadata:
            known.deleting_since = known.deleting_since or now
            if behaviour.confirms_deletion and now - known.deleting_since >= behaviour.stop_seconds:
                await _tolerant(client.delete(PODS, name, self._namespace, uid=uid, grace_seconds=0))
            return
        if not pod["spec"].get("nodeName") and not behaviour.unschedulable:
            await self._bind(client, name)
        await self._report(client, pod, known, behaviour, now)

    async def _bind(self, client: KubeClient, name: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "stand-in"},
        }
        path = PODS.path(namespace=self._namespace, name=name, subresource="binding")
        import orjson

        await client.request_raw("POST", path, body=orjson.dumps(binding))

    async def _report(self, client: KubeClient, pod: KubeObject, known: _Pod, behaviour: Behaviour, now: float) -> None:
        status = _status(pod, known, behaviour, loaded=now - known.seen >= behaviour.load_seconds)
        if status["ready"] and known.address not in set(self._serving):
            await self._serve(known)
        wanted = status["body"]
        if _differs(pod.get("status") or {}, wanted):
            patch = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": wanted}
            await _tolerant(
                client.patch_strategic(PODS, pod["metadata"]["name"], self._namespace, patch, subresource="status")
            )

    @property
    def _serving(self) -> list[str]:
        return [address for runner in self._runners for address, *_ in runner.addresses]

    async def _serve(self, pod: _Pod) -> None:
        engine = pod.engine

        async def load(request: web.Request) -> web.Response:
            if not engine.answers:
                raise web.HTTPServiceUnavailable
            return web.json_response({"running": engine.streams, "waiting": 0, "draining": engine.draining})

        async def drain(request: web.Request) -> web.Response:
            engine.draining, engine.drains = True, engine.drains + 1
            return web.json_response({"draining": True, "running": engine.streams, "waiting": 0})

        app = web.Application()
        app.router.add_get("/load", load)
        app.router.add_post("/drain", drain)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, pod.address, ENGINE_PORT).start()
        self._runners.append(runner)


def _status(pod: KubeObject, known: _Pod, behaviour: Behaviour, *, loaded: bool) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if behaviour.unschedulable:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": behaviour.unschedulable,
            "lastTransitionTime": now,
        }
        return {"ready": False, "body": {"phase": "Pending", "conditions": [condition]}}
    container: dict[str, Any] = {
        "name": "engine",
        "image": pod["spec"]["containers"][0]["image"],
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}},
    }
    running = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}
    ready = False
    if behaviour.waiting:
        container["state"] = {"waiting": {"reason": behaviour.waiting[0], "message": behaviour.waiting[1]}}
    elif behaviour.exits:
        code, words = behaviour.exits
        terminated = {"exitCode": code, "reason": "Error", "message": words, "startedAt": now, "finishedAt": now}
        container |= {
            "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
            "lastState": {"terminated": terminated},
        }
    elif loaded:
        ready = True
        container |= {"ready": True, "started": True, "state": running}
    else:
        container["state"] = running
    gate = _condition(pod, SERVING_GATE)
    open_ = ready and gate is not None and gate["status"] == "True"
    conditions = [
        {"type": kind, "status": "True" if true else "False", "lastTransitionTime": now}
        for kind, true in (("PodScheduled", True), ("ContainersReady", ready), ("Ready", open_))
    ]
    phase = "Running" if ready or behaviour.exits else "Pending"
    body = {"phase": phase, "conditions": conditions, "containerStatuses": [container], "podIP": known.address}
    return {"ready": ready, "body": body}


def _differs(present: dict[str, Any], wanted: dict[str, Any]) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in present.get("conditions") or ()}
    return (
        present.get("phase") != wanted["phase"]
        or any(conditions.get(entry["type"]) != entry["status"] for entry in wanted["conditions"])
        or _states(present) != _states(wanted)
    )


def _states(status: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (
            entry.get("started"),
            entry.get("restartCount"),
            ((entry.get("state") or {}).get("waiting") or {}).get("reason"),
            ((entry.get("lastState") or {}).get("terminated") or {}).get("exitCode"),
        )
        for entry in status.get("containerStatuses") or ()
    ]


def _condition(pod: KubeObject, kind: str) -> dict[str, Any] | None:
    found = [entry for entry in (pod.get("status") or {}).get("conditions") or () if entry["type"] == kind]
    return found[0] if found else None


async def _tolerant(call: Any) -> None:
    """Another writer may be first: the next round looks again."""
    try:
        await call
    except ApiError as error:
        if error.status not in {404, 409}:
            raise


Check = Callable[[], bool]
