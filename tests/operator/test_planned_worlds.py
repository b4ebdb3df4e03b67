"""The planners against a small model of the world: whatever is interrupted, lost or changed, it ends as wanted.

Actions are carried out one at a time and may stop after any of them, which is what a SIGKILL does.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.operator import builders
from tests.operator.builders import KEY, NOW, SETTINGS

from tidewheel.crds.names import IN_SERVICE_FINALIZER, UID_LABEL
from tidewheel.operator.planning.actions import (
    Action,
    AddFinalizer,
    AdoptPod,
    ApplyService,
    CreatePod,
    DeletePod,
    DeleteService,
    DeleteTable,
    OpenGate,
    RemoveFinalizer,
    StartDrain,
    WriteTable,
)
from tidewheel.operator.planning.model import plan_model
from tidewheel.operator.planning.records import (
    EngineContainer,
    LoadReading,
    Meta,
    Picture,
    PodCondition,
    PodPhase,
    PodRecord,
    RuleRecord,
    ServiceRecord,
    TableRecord,
    VersionRecord,
)

NAMES = ("v1", "v2", "v3")
KEEP = 120


class World(RuleBasedStateMachine):
    """Users edit, pods live, time passes, and an operator acts in pieces."""

    @initialize(replicas=st.lists(st.integers(0, 3), max_size=3), share=st.sampled_from([0, 50]), running=st.booleans())
    def begin(self, replicas: list[int], share: int, running: bool) -> None:
        """Mostly from a world that runs: that is where it can be harmed."""
        self._empty()
        for name, count in zip(NAMES, replicas, strict=False):
            self.apply_version(name, count)
        if len(replicas) > 1:
            self.apply_rule(share, list(NAMES))
        if running:
            self.operator_acts_and_is_killed(4, 1, 5)

    def _empty(self) -> None:
        self.now = NOW
        self.versions: dict[str, VersionRecord] = {}
        self.pods: dict[str, PodRecord] = {}
        self.services: dict[str, ServiceRecord] = {}
        self.rule: RuleRecord | None = None
        self.table: TableRecord | None = None
        self.streams: dict[str, int] = {}
        self.numbers = iter(range(1, 10**9))

    # Users.

    @rule(name=st.sampled_from(NAMES), replicas=st.integers(0, 4), image=st.sampled_from(["a", "b"]))
    def apply_version(self, name: str, replicas: int, image: str = "a") -> None:
        known = self.versions.get(name)
        uid = f"uid-{next(self.numbers)}"
        if known is not None and known.spec is not None:
            image = known.spec.engine.image  # immutable
        made = builders.version(name, uid=uid, replicas=replicas, held=False, engine={"image": image})
        if known is not None:
            made = replace(known, spec=made.spec, digest=made.digest)
        self.versions[name] = made

    @rule(name=st.sampled_from(NAMES))
    def delete_version(self, name: str) -> None:
        known = self.versions.get(name)
        if known is not None and known.meta.deleting is None:
            if known.meta.finalizers:
                self.versions[name] = replace(known, meta=replace(known.meta, deleting=self.now))
            else:
                del self.versions[name]

    @rule(name=st.sampled_from(NAMES))
    def remove_version_by_force(self, name: str) -> None:
        """A person strips the finalizer."""
        self.versions.pop(name, None)

    @rule(share=st.sampled_from([0, 1, 50, 100]), pair=st.permutations(NAMES))
    def apply_rule(self, share: int, pair: list[str]) -> None:
        percents = {name: percent for name, percent in ((pair[0], 100 - share), (pair[1], share)) if percent}
        generation = self.rule.meta.generation + 1 if self.rule else 1
        uid = self.rule.meta.uid if self.rule else f"uid-{next(self.numbers)}"
        self.rule = builders.rule(generation=generation, uid=uid, keep=KEEP, **percents)

    @rule()
    def delete_rule(self) -> None:
        self.rule = None

    # Nodes and clients.

    @rule(data=st.data())
    def pod_gets_on(self, data: st.DataObject) -> None:
        if self.pods:
            name = data.draw(st.sampled_from(sorted(self.pods)))
            self._get_on(name)

    def _get_on(self, name: str) -> None:
        pod = self.pods[name]
        if pod.is_terminating:
            del self.pods[name]
        elif not pod.is_finished:
            gate = pod.gate is not None and pod.gate.status == "True"
            engine = EngineContainer(running_since=self.now, started=True)
            self.pods[name] = replace(pod, node="node", phase=PodPhase.RUNNING, engine=engine, ready=gate)

    @rule(streams=st.lists(st.integers(0, 3), min_size=4, max_size=9))
    def streams_come_and_go(self, streams: list[int]) -> None:
        serving = sorted(pod.meta.uid for pod in self.pods.values() if pod.ready)
        self.streams |= dict(zip(serving, streams, strict=False))

    @rule(data=st.data())
    def pod_is_evicted(self, data: st.DataObject) -> None:
        if self.pods:
            name = data.draw(st.sampled_from(sorted(self.pods)))
            self.pods[name] = replace(self.pods[name], phase=PodPhase.FAILED, ready=False)

    @rule(seconds=st.sampled_from([1, 10, 100, 1000]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    # The operator.

    @rule(rounds=st.integers(1, 4), steps=st.integers(1, 8), seconds=st.sampled_from([0, 2, 5]))
    def operator_acts_and_is_killed(self, rounds: int, steps: int, seconds: int) -> None:
        """Whole rounds, while pods get on, and then a part of one."""
        for _ in range(rounds):
            self._act(100)
            self.now += timedelta(seconds=seconds)
            for name in sorted(self.pods):
                self._get_on(name)
        self._act(steps)

    def _act(self, steps: int) -> bool:
        """Carry out at most so many actions; whether there was one."""
        plan = plan_model(self._picture(), settings=SETTINGS, new_salt="salt")
        actions = [action for chain in plan.chains for action in chain.actions]
        for action in actions[:steps]:
            self._do(action)
        return bool(actions)

    def _picture(self) -> Picture:
        loads = {
            pod.meta.uid: LoadReading(
                at=self.now,
                streams=self.streams.get(pod.meta.uid, 0),
                draining=_told(pod, self.now),
            )
            for pod in self.pods.values()
        }
        return Picture(
            key=KEY,
            now=self.now,
            versions=dict(self.versions),
            rule=self.rule,
            table=self.table,
            pods=tuple(self.pods.values()),
            services=dict(self.services),
            loads=loads,
        )

    def _do(self, action: Action) -> None:
        match action:
            case AddFinalizer(version=version):
                meta = replace(version.meta, finalizers=(IN_SERVICE_FINALIZER,))
                self.versions[version.version] = replace(version, meta=meta)
            case RemoveFinalizer(version=version):
                assert version.meta.deleting is not None
                del self.versions[version.version]
            case ApplyService(manifest=manifest):
                name = manifest["metadata"]["labels"]["tidewheel.dev/version"]
                self.services[name] = builders.service(self.versions[name])
            case DeleteService(service=service):
                del self.services[service.version]
            case CreatePod(manifest=manifest):
                self._create(manifest["metadata"])
            case OpenGate(pod=pod):
                self.pods[pod.meta.name] = replace(pod, gate=PodCondition("True", since=self.now))
            case StartDrain(pod=pod):
                closed = PodCondition("False", since=self.now)
                self.pods[pod.meta.name] = replace(pod, gate=closed, ready=False)
            case DeletePod(pod=pod):
                self._delete(pod)
            case AdoptPod(pod=pod, labels=labels):
                self.pods[pod.meta.name] = replace(pod, labels={**pod.labels, UID_LABEL: labels[UID_LABEL]})
            case WriteTable(spec=spec):
                assert sum(target.weight for target in spec.targets) == 10_000
                meta = self.table.meta if self.table else builders.meta(KEY.model)
                self.table = TableRecord(meta=meta, spec=spec)
            case DeleteTable():
                self.table = None

    def _create(self, metadata: dict[str, object]) -> None:
        name = str(metadata["name"])
        assert name not in self.pods, f"{name} exists"
        slot, incarnation = (int(part) for part in name.rsplit("-", 2)[1:])
        labels = metadata["labels"]
        assert isinstance(labels, dict)
        self.pods[name] = PodRecord(
            meta=Meta(
                namespace=KEY.namespace,
                name=name,
                uid=f"uid-{next(self.numbers)}",
                resource_version="1",
                created=self.now,
            ),
            labels=labels,
            slot=slot,
            incarnation=incarnation,
        )

    def _delete(self, pod: PodRecord) -> None:
        streams = self.streams.get(pod.meta.uid, 0)
        assert not pod.is_terminating, "a pod is deleted once"
        if streams and pod.may_hold_streams and not pod.is_finished:
            assert pod.gate is not None
            assert pod.gate.since is not None
            assert self.now - pod.gate.since >= timedelta(seconds=600), f"{streams} streams of {pod.meta.name} were cut"
        self.pods[pod.meta.name] = replace(pod, meta=replace(pod.meta, deleting=self.now))

    # What always holds, and what must come in the end.

    @precondition(lambda self: self.rule is None or all(t.version in self.versions for t in self.rule.spec.traffic))
    @rule()
    def left_alone_it_converges(self) -> None:
        self.streams.clear()
        for _ in range(60):
            acted = self._act(100)
            for name in sorted(self.pods):
                self._get_on(name)
            if not acted:
                self.now += timedelta(seconds=400)
        assert not self._act(0), "there is still something to do"
        self._assert_as_wanted()

    def _assert_as_wanted(self) -> None:
        live: dict[str, int] = {}
        slots = [(pod.version, pod.slot) for pod in self.pods.values()]
        assert len(slots) == len(set(slots)), f"two pods in one slot: {sorted(self.pods)}"
        weights = {target.version for target in self.table.spec.targets} if self.table and self.table.spec else set()
        for pod in self.pods.values():
            # Nothing is done to pods of a version that is gone and takes traffic, not even to those that have ended.
            assert pod.is_live or (pod.version not in self.versions and pod.version in weights), pod.meta.name
            live[pod.version] = live.get(pod.version, 0) + 1
        for name, version in self.versions.items():
            assert version.spec is not None
            wanted = version.spec.replicas or 0
            if version.meta.deleting is not None:
                assert name in weights, f"{name} is deleted, takes no traffic and is still here"
            assert live.get(name, 0) == max(wanted, 1 if name in weights else 0), name
        assert set(live) - set(self.versions) <= weights, "pods of a version that is gone stay only for its traffic"
        if self.rule is not None and not self._names_deleted():
            assert self.rule.spec is not None
            asked = {target.version: target.percent * 100 for target in self.rule.spec.traffic}
            assert self.table is not None
            assert self.table.spec is not None
            assert {target.version: target.weight for target in self.table.spec.targets} == asked
        if self.rule is None:
            assert self.table is None

    def _names_deleted(self) -> bool:
        """A rule that wants more of a version that is deleted, or gone by now, is refused for as long as it says so."""
        assert self.rule is not None
        assert self.rule.spec is not None
        named = [self.versions.get(target.version) for target in self.rule.spec.traffic]
        return any(version is None or version.meta.deleting for version in named)


def _told(pod: PodRecord, now: datetime) -> bool:
    return pod.is_draining and pod.gate is not None and pod.gate.since is not None and now > pod.gate.since


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
