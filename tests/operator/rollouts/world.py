"""A model's life with the operator's own planner, executor and reconciler, on objects in memory and a fake clock."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.operator.rollouts.store import OperatorDiedError, Store

from tidewheel.clients.resources import (
    MODEL_VERSIONS,
    PODS,
    ROUTING_RULES,
    ROUTING_TABLES,
    KubeObject,
)
from tidewheel.crds.names import GROUP_VERSION, VERSION_LABEL
from tidewheel.operator.moments import format_moment
from tidewheel.operator.parsing import PARSERS
from tidewheel.operator.planning.actions import Action, SaveRollout
from tidewheel.operator.planning.drain import DrainSettings
from tidewheel.operator.planning.podmanifest import ENGINE_CONTAINER, PodSettings
from tidewheel.operator.planning.pool import PoolSettings
from tidewheel.operator.planning.records import LoadReading, ModelKey, PodRecord
from tidewheel.operator.planning.rollouts.evidence import RolloutEvidence
from tidewheel.operator.planning.rollouts.plan import RolloutPlan
from tidewheel.operator.reconciling.executor import Executor
from tidewheel.operator.reconciling.reconciler import Outcome, Reconciler
from tidewheel.operator.watching.cache import WATCHED, Cache
from tidewheel.rollout.judge.findings import Verdict, VerdictKind

KEY = ModelKey("shop", "chat")
START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
BLOCK = 30.0
SETTINGS = PoolSettings(
    pods=PodSettings(engine_token=False), drain=DrainSettings(propagation_seconds=0.0), min_ready_seconds=0.0
)
STEPS = ({"percent": 1}, {"percent": 5}, {"percent": 25}, {"percent": 50}, {"percent": 100})


class Desk:
    """What the operator is told about its rollouts: confirmations as gateways give them, verdicts as tests say."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.plan: RolloutPlan | None = None

    def evidence(self, key: ModelKey) -> RolloutEvidence:
        del key
        world = self._world
        watched = self.plan is not None and self.plan.confirming is not None
        return RolloutEvidence(confirmed=world.obeyed() if watched else {}, verdict=world.verdict, has_judge=False)

    def follow(self, key: ModelKey, plan: RolloutPlan | None, *, exists: bool) -> None:
        del key, exists
        self.plan = plan


class Loads:
    """Engines without a stream, that drain as soon as they are asked to."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.readings: dict[str, LoadReading] = {}

    def follow(self, key: ModelKey, pods: Iterable[PodRecord]) -> None:
        del key
        self.readings = {
            pod.meta.uid: LoadReading(at=self._world.now, streams=0, draining=True, oldest_stream_seconds=None)
            for pod in pods
        }


@dataclass
class World:
    """Everything that outlives the operator is in ``store``."""

    now: datetime = START
    gateways: dict[str, int | None] = field(default_factory=lambda: {"a": 0, "b": 0})
    gateways_follow: bool = True
    kind: VerdictKind | None = VerdictKind.CLEAR
    verdict: Verdict | None = None
    gpus: int | None = None
    """Replicas that find a node; also the operator's GPU budget. None: as many as there are."""
    unready: set[str] = field(default_factory=set)
    """Versions whose replicas do not become, or stay, ready."""
    events: list[tuple[str, str]] = field(default_factory=list)
    credits: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)
    deaths: int = 0

    def __post_init__(self) -> None:
        self.store = Store(lambda: self.now)
        self._runner = asyncio.Runner()
        self._salts = 0
        self.start_operator()

    def close(self) -> None:
        self._runner.close()

    # --- people -----------------------------------------------------------------------------------------------------

    def apply_version(self, name: str, *, replicas: int = 2, image: str = "tidewheel:1") -> None:
        self.store.remove(MODEL_VERSIONS, f"chat-{name}", KEY.namespace)
        spec = {
            "model": "chat",
            "version": name,
            "artifact": {"uri": f"file:///models/{name}.gguf"},
            "engine": {"image": image},
            "replicas": replicas,
        }
        self._put(MODEL_VERSIONS, "ModelVersion", f"chat-{name}", spec)

    def apply_rule(
        self, *, steps: Iterable[Mapping[str, Any]] = STEPS, rollout: Mapping[str, Any] = {}, **percents: int
    ) -> None:
        found = self.store.find(ROUTING_RULES, "chat", KEY.namespace) or {"spec": {}}
        spec: dict[str, Any] = {
            "model": "chat",
            "traffic": [{"version": version, "percent": percent} for version, percent in percents.items()],
            "rollout": {
                "keepPreviousSeconds": 900,
                "steps": list(steps),
                "bakeSeconds": 120,
                "maxHoldSeconds": 900,
                "confirmSeconds": 30,
                **rollout,
            },
        }
        if "paused" in found["spec"]:
            spec["paused"] = found["spec"]["paused"]
        self._put(ROUTING_RULES, "RoutingRule", "chat", spec)

    def pause(self, *, paused: bool) -> None:
        found = self.rule()
        self.store.put(ROUTING_RULES, {**found, "spec": {**found["spec"], "paused": paused}})

    def control(self, **wishes: Any) -> None:
        """`tidewheel pause|resume|promote|retry`."""
        rollout_id = (self.rollout() or {}).get("id", "none")
        control = {"rolloutId": rollout_id, "actor": "ada", "at": format_moment(self.now), **wishes}
        table = self.table()
        self.store.put(ROUTING_TABLES, {**table, "spec": {**table["spec"], "control": control}})

    def roll_back_by_hand(self) -> bool:
        """`kubectl rollback`; False where there is nothing to go back to."""
        table = self.table()
        spec = table["spec"]
        rejected = {entry["digest"] for entry in spec.get("rejected", [])}
        back = [t for t in spec.get("previous", []) if t["weight"] and t["digest"] not in rejected]
        if sum(t["weight"] for t in back) != 10_000 or back == spec["targets"]:
            return False
        kept = {t["version"]: t["weight"] for t in back}
        losers = [t for t in spec["targets"] if t["weight"] > kept.get(t["version"], 0)]
        at = format_moment(self.now)
        new = [{"digest": t["digest"], "version": t["version"], "reason": "by hand", "at": at} for t in losers]
        spec = {
            **spec,
            "targets": back,
            "previous": spec["targets"],
            "rejected": [*spec.get("rejected", []), *new],
            "cause": {"actor": "ada", "reason": "Rollback", "message": "by hand", "at": at},
        }
        self.store.put(ROUTING_TABLES, {**table, "spec": spec})
        return True

    # --- the world --------------------------------------------------------------------------------------------------

    def rule(self) -> KubeObject:
        found = self.store.find(ROUTING_RULES, "chat", KEY.namespace)
        assert found is not None
        return dict(found)

    def table(self) -> KubeObject:
        found = self.store.find(ROUTING_TABLES, "chat", KEY.namespace)
        assert found is not None
        return found

    def rollout(self) -> dict[str, Any] | None:
        """``status.rollout`` as it is stored."""
        found: dict[str, Any] | None = self.rule().get("status", {}).get("rollout")
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        conditions = self.rule().get("status", {}).get("conditions", [])
        return next(((c["status"], c["reason"]) for c in conditions if c["type"] == kind), ("", ""))

    def split(self) -> dict[str, int]:
        found = self.store.find(ROUTING_TABLES, "chat", KEY.namespace)
        return {t["version"]: t["weight"] for t in found["spec"]["targets"] if t["weight"]} if found else {}

    def serving(self, version: str) -> int:
        return sum(
            PARSERS[PODS](pod).is_serving  # type: ignore[union-attr]
            for pod in self.store.all(PODS)
            if pod["metadata"]["labels"][VERSION_LABEL] == version
        )

    def placed(self) -> list[str]:
        """Versions of the pods that hold a node's GPU."""
        return [
            pod["metadata"]["labels"][VERSION_LABEL]
            for pod in self.store.all(PODS)
            if pod.get("spec", {}).get("nodeName")
        ]

    def obeyed(self) -> dict[str, int | None]:
        return dict(self.gateways)

    # --- the operator -----------------------------------------------------------------------------------------------

    def start_operator(self) -> None:
        """A fresh process: nothing is known but what is stored."""
        self.cache = Cache(lambda _key: None)
        self.cache.gpu_budget = self.gpus
        self.desk, self.loads = Desk(self), Loads(self)
        self.verdict = None
        client: Any = self.store
        executor = Executor(client, self.cache, may_write=lambda: True, now=lambda: self.now, on_done=self._done)
        desk: Any = self.desk
        loads: Any = self.loads
        self._reconciler = Reconciler(
            client,
            self.cache,
            executor=executor,
            loads=loads,
            rollouts=desk,
            settings=SETTINGS,
            may_write=lambda: True,
            now=lambda: self.now,
            new_salt=self._new_salt,
            on_status=lambda *_: None,
        )

    def look(self) -> Outcome | None:
        """One reconcile from what the watch shows by now. None: the operator died, and a new one has started."""
        for resource in WATCHED:
            records = [PARSERS[resource](body) for body in self.store.all(resource)]
            self.cache.replace(resource, None, records, str(self.store._version))
        try:
            return self._runner.run(self._reconciler.reconcile(KEY))
        except OperatorDiedError:
            self.deaths += 1
            self.start_operator()
            return None

    def settle(self, looks: int = 12) -> None:
        """Look, and let kubelets and gateways follow, until nothing is due now."""
        for _ in range(looks):
            writes = self.store.writes
            outcome = self.look()
            moved = self.kubelet()
            self.follow()
            due = outcome is None or outcome.failed or (outcome.wake_seconds or 9.0) < 0.1
            if writes == self.store.writes and not moved and not due and self.followed():
                return

    def tick(self, seconds: float = BLOCK) -> None:
        """Time passes; the judge judges what it was told to."""
        self.now += timedelta(seconds=seconds)
        self.judge(seconds)
        self.settle()

    def until(self, version: str, share: int, *, ticks: int = 200) -> None:
        """Tick until the version has that share and is judged, or is all there is."""
        for _ in range(ticks):
            if self.split().get(version, 0) == share and (self.desk.plan is None or self.desk.plan.judging):
                return
            self.tick()
        raise AssertionError(f"{version} never got {share}: {self.split()} {self.rollout()}")

    def until_finished(self, *, ticks: int = 200) -> dict[str, Any]:
        for _ in range(ticks):
            rollout, answered = self.rollout(), self.table()["spec"].get("ruleGeneration")
            if rollout is not None and "outcome" in rollout and answered == self.rule()["metadata"]["generation"]:
                return rollout
            self.tick()
        raise AssertionError(f"never ended: {self.split()} {self.rollout()}")

    def judge(self, seconds: float = BLOCK) -> None:
        """A verdict on the step under judgement; it credits the time since the last look."""
        order = self.desk.plan.judging if self.desk.plan is not None else None
        if order is None or self.kind is None:
            self.verdict = None
            return
        context, end = order.context, self.now.timestamp()
        verdict = Verdict(
            rollout_id=context.rollout_id,
            step=context.step,
            at=end,
            kind=self.kind,
            reason="Test",
            message="said so",
            canary_requests=10,
            base_requests=90,
        )
        if not verdict.stops_clock:
            credit = (max(end - seconds, context.confirmed_at), end)
            self.credits.setdefault((context.rollout_id, context.step), []).append(credit)
            verdict = replace(verdict, credit=credit)
        self.verdict = verdict

    def kubelet(self) -> bool:
        """Pods become ready, or stop being so. Returns whether one changed."""
        changed = False
        self.cache.gpu_budget = self.gpus
        room = None if self.gpus is None else self.gpus - len(self.placed())
        for pod in self.store.all(PODS):
            record = PARSERS[PODS](pod)
            assert isinstance(record, PodRecord)
            wanted = record.version not in self.unready and record.gate is not None and record.gate.status == "True"
            if not record.node and room is not None and wanted:
                if room <= 0:
                    continue
                room -= 1
            if record.ready != wanted:
                changed = True
                self.store.put(PODS, _with_readiness(pod, ready=wanted, at=format_moment(self.now)))
        return changed

    def follow(self) -> None:
        found = self.store.find(ROUTING_TABLES, "chat", KEY.namespace)
        if self.gateways_follow and found is not None:
            self.gateways = dict.fromkeys(self.gateways, found["metadata"]["generation"])

    def followed(self) -> bool:
        found = self.store.find(ROUTING_TABLES, "chat", KEY.namespace)
        return (
            not self.gateways_follow
            or found is None
            or set(self.gateways.values()) == {found["metadata"]["generation"]}
        )

    def _done(self, action: Action) -> None:
        if isinstance(action, SaveRollout):
            self.events.extend((event.reason, event.message) for event in action.events)

    def _new_salt(self) -> str:
        self._salts += 1
        return f"r{self._salts}"

    def _put(self, resource: Any, kind: str, name: str, spec: dict[str, Any]) -> None:
        found = self.store.find(resource, name, KEY.namespace) or {}
        body = {
            **found,
            "apiVersion": GROUP_VERSION,
            "kind": kind,
            "metadata": {**found.get("metadata", {}), "name": name, "namespace": KEY.namespace},
            "spec": spec,
        }
        self.store.put(resource, body)


def _with_readiness(pod: KubeObject, *, ready: bool, at: str) -> KubeObject:
    status = dict(pod.get("status", {}))
    conditions = [entry for entry in status.get("conditions", []) if entry["type"] not in {"Ready"}]
    conditions.append({"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": at})
    status |= {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": conditions,
        "containerStatuses": [
            {"name": ENGINE_CONTAINER, "started": True, "state": {"running": {"startedAt": at}}, "restartCount": 0}
        ],
    }
    return {**pod, "spec": {**pod.get("spec", {}), "nodeName": "node-1"}, "status": status}
