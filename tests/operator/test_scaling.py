"""Scaling in the operator: from what Prometheus and engines say to replicas, rung, status and saved profile."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.operator.builders import KEY, NOW, SETTINGS, ago, meta, picture, pod, rule, table, version

from tidewheel.autoscaler.capacity import CapacitySource, EngineReport, StepTimes
from tidewheel.autoscaler.ladder import LadderSettings
from tidewheel.autoscaler.units import Demand, Unit
from tidewheel.clients.prometheus import Answer, PrometheusError, Sample
from tidewheel.operator.moments import parse_moment
from tidewheel.operator.planning.actions import CreatePod, StartDrain, WriteTable
from tidewheel.operator.planning.model import ModelPlan, plan_model, plan_version_status
from tidewheel.operator.planning.records import EngineContainer, Picture, PodCondition, VersionRecord
from tidewheel.operator.scaling.demand import DemandReader, DemandReading, OfferedLoad
from tidewheel.operator.scaling.engines import engine_report
from tidewheel.operator.scaling.model_scaling import ModelScaling, Surroundings
from tidewheel.operator.scaling.nodes import leaving_nodes
from tidewheel.operator.scaling.past import joined
from tidewheel.operator.scaling.profile import profile_text, saved_buckets
from tidewheel.operator.scaling.settings import ScalingSettings
from tidewheel.operator.scaling.starts import measured_starts
from tidewheel.operator.scaling.writers import other_writers

QUICK = ScalingSettings(
    period_seconds=15,
    step_seconds=300,
    cold_start_prior_seconds=60,
    ladder=LadderSettings(period_seconds=10, minimum_seconds=30),
)
REPORT = EngineReport(
    kv_tokens=1e6,
    max_num_seqs=256,
    steps=StepTimes(base=0.005, per_prefill_token=0.0, per_decode=0.0005, per_context_token=0.0),
)


def _scaled(**scaling: Any) -> VersionRecord:
    return version("v1", replica={"gpus": 2}, scaling={"minReplicas": 1, "maxReplicas": 20, **scaling})


def _world(of: VersionRecord, *, pods: int = 1, **changes: Any) -> Picture:
    answered = rule(v1=100)
    return picture(
        of,
        pods=tuple(pod(of, slot) for slot in range(pods)),
        rule=answered,
        table=table({"v1": of}, answered=answered, v1=10_000),
        **changes,
    )


def _reading(output_rate: float | None, *, reporters: int = 2, error: str = "") -> DemandReading:
    models: Mapping[Any, OfferedLoad] = {}
    if output_rate is not None:
        load = OfferedLoad(
            prompt_rate=output_rate, output_rate=output_rate, prompt_tokens=100, output_tokens=100, reporters=reporters
        )
        models = {KEY: load}
    return DemandReading(at=NOW.timestamp(), models=models, error=error)


def _demand(decode: float) -> Demand:
    return Demand(prefill=decode, decode=decode, kv_blocks=0.0)


AROUND = Surroundings(reports={"v1": REPORT})
ONE = 0.85 * 90 / 0.05
"""Output tokens a second of one replica by that report, at the default slo of 50 ms."""


def _advised(
    scaling: ModelScaling, world: Picture, reading: DemandReading, around: Surroundings = AROUND
) -> tuple[Picture, ModelPlan]:
    advice = scaling.advise(world, reading, around)
    found = replace(world, advice=advice)
    return found, plan_model(found, settings=SETTINGS, new_salt="salt")


def _creates(plan: ModelPlan) -> list[CreatePod]:
    return [action for chain in plan.chains for action in chain.actions if isinstance(action, CreatePod)]


def test_demand_above_one_replica_orders_more_at_once() -> None:
    _, plan = _advised(ModelScaling(QUICK), _world(_scaled()), _reading(3 * ONE))
    assert len(_creates(plan)) == 4  # 3 x 1.2 = 3.6 -> 4, one spare, one is there


def test_the_status_says_the_arithmetic_and_one_sentence() -> None:
    of = _scaled()
    world, plan = _advised(ModelScaling(QUICK), _world(of), _reading(3 * ONE))
    status = plan_version_status(of, plan, world, {})
    assert status.desired_replicas == 5
    assert status.forecast_replicas == 5
    assert status.scaling is not None
    assert status.scaling.binding == Unit.DECODE
    assert [unit.unit for unit in status.scaling.units] == list(Unit)
    decode = next(unit for unit in status.scaling.units if unit.unit == Unit.DECODE)
    assert decode.present == round(3 * ONE)
    assert decode.capacity == round(ONE)
    assert "x 1.20 margin" in status.scaling.message
    assert "1 spare" in status.scaling.message
    assert status.capacity is not None
    assert status.capacity.source == CapacitySource.SELF_BENCHMARK


def test_a_status_is_not_rewritten_by_numbers_that_change_nothing() -> None:
    of, scaling = _scaled(), ModelScaling(QUICK)
    world, plan = _advised(scaling, _world(of, pods=5), _reading(3 * ONE))
    first = plan_version_status(of, plan, world, {})
    seen = replace(of, status=first)
    later = replace(_world(seen, pods=5), now=NOW + timedelta(seconds=15))
    world, plan = _advised(scaling, later, _reading(3.02 * ONE))
    assert plan_version_status(seen, plan, world, {}) == first


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        pytest.param(_reading(None, error="http://prometheus gave no answer in 5 s"), "gave no answer", id="outage"),
        pytest.param(_reading(None), "no gateway has series", id="missing series"),
        pytest.param(_reading(0.5 * ONE, reporters=1), "only 1 of 2 gateways report", id="half the gateways"),
    ],
)
def test_unknown_demand_freezes_and_the_status_says_why(reading: DemandReading, words: str) -> None:
    """kedacore/keda#3065, kedacore/keda#6475."""
    of, scaling = _scaled(holdSeconds=0), ModelScaling(QUICK)
    _advised(scaling, _world(of, pods=5), _reading(3 * ONE))
    later = replace(_world(of, pods=5), now=NOW + timedelta(seconds=30))
    world, plan = _advised(scaling, later, reading)
    status = plan_version_status(of, plan, world, {})
    assert status.desired_replicas == 5
    assert plan.outlooks["v1"].desired == 5
    assert status.scaling is not None
    assert status.scaling.binding == "blind"
    assert words in status.scaling.message


def test_no_demand_is_zero_where_gateways_say_so() -> None:
    """kedacore/keda#4316: a true zero is no reason for an endless fallback."""
    of, scaling = _scaled(holdSeconds=0), ModelScaling(QUICK)
    _, plan = _advised(scaling, _world(of, pods=4), _reading(0.0))
    assert plan.outlooks["v1"].desired == 1


def test_before_anything_is_known_the_size_is_min_replicas() -> None:
    of = _scaled(minReplicas=3)
    _, plan = _advised(ModelScaling(QUICK), _world(of), _reading(None))
    assert plan.outlooks["v1"].desired == 3


SHAPE = {
    "parametersBillions": 70,
    "layers": 80,
    "kvHeads": 8,
    "gpuMemoryGigabytes": 80,
    "gpuTerabytesPerSecond": 3.35,
    "gpuTeraflops": 989,
}


def test_before_an_engine_has_reported_a_declared_shape_gives_the_size() -> None:
    """A 70B on four H100 (DESIGN section 12): 148 GB of KV, of which half is believed at first."""
    of = version("v1", replica={"gpus": 4}, scaling={"minReplicas": 1, "maxReplicas": 99, "shape": SHAPE})
    world, _ = _advised(ModelScaling(QUICK), _world(of), _reading(100.0), Surroundings(reports={}))
    assert world.advice is not None
    capacity = world.advice.versions["v1"].capacity
    assert capacity.source is CapacitySource.PRIOR
    assert 10_500 < capacity.decode < 20_000
    assert capacity.kv_tokens == pytest.approx(0.5 * 148e9 / 327_680, rel=0.01)
    # The first report of an engine is better than any prior.
    world, _ = _advised(ModelScaling(QUICK), _world(of), _reading(100.0))
    assert world.advice is not None
    assert world.advice.versions["v1"].capacity.source is CapacitySource.SELF_BENCHMARK


def test_a_version_that_has_not_run_is_taken_to_carry_what_its_sibling_on_the_same_replicas_does() -> None:
    bounds = {"minReplicas": 1, "maxReplicas": 20}
    artifact = {"uri": "file:///models/next.gguf"}
    old, new = _scaled(), version("v2", artifact=artifact, replica={"gpus": 2}, scaling=bounds)
    answered = rule(v1=100, v2=0)
    world = picture(
        old, new, pods=(pod(old, 0),), rule=answered, table=table({"v1": old}, answered=answered, v1=10_000)
    )
    found, _ = _advised(ModelScaling(QUICK), world, _reading(ONE))
    assert found.advice is not None
    assert found.advice.versions["v2"].capacity.decode == pytest.approx(ONE)
    assert found.advice.versions["v2"].capacity.source is CapacitySource.PRIOR


def test_a_gpu_budget_caps_the_size_and_the_shortfall_is_published_and_climbs_the_ladder() -> None:
    """LLMKube#1311: quota 6, need 9 -> 6 run, the shortfall is published, the ladder starts."""
    of, scaling = _scaled(gpuBudget=4), ModelScaling(QUICK)
    world, plan = _advised(scaling, _world(of, pods=2), _reading(3 * ONE))
    status = plan_version_status(of, plan, world, {})
    assert status.desired_replicas == 2
    assert status.scaling is not None
    assert status.scaling.shortfall == 3
    assert status.scaling.binding == "GPU budget"
    write = next(action for chain in plan.chains for action in chain.actions if isinstance(action, WriteTable))
    assert write.spec.rung >= 1
    assert write.reason == "LadderUp"


def test_with_a_rung_the_table_says_when_replicas_on_their_way_will_be_enough() -> None:
    of, scaling = _scaled(), ModelScaling(QUICK)
    world, plan = _advised(scaling, _world(of, pods=1), _reading(3 * ONE))
    write = next(action for chain in plan.chains for action in chain.actions if isinstance(action, WriteTable))
    assert write.spec.rung >= 1
    # Ordered now; before three starts were measured a start takes the prior of 60 s, or twice that.
    assert write.spec.relief is not None
    assert parse_moment(write.spec.relief.p50) - NOW == timedelta(seconds=60)
    assert parse_moment(write.spec.relief.p90) - NOW == timedelta(seconds=120)
    assert "capacity is expected to be enough in 60 s" in write.message
    # The next look comes to nearly the same: nothing is written.
    assert world.table is not None
    told = replace(world, table=replace(world.table, spec=write.spec), now=NOW + timedelta(seconds=5))
    _, plan = _advised(scaling, told, _reading(3 * ONE))
    assert not [a for chain in plan.chains for a in chain.actions if isinstance(a, WriteTable)]


def test_at_a_budget_nobody_knows_when_capacity_will_be_enough() -> None:
    of, scaling = _scaled(gpuBudget=4), ModelScaling(QUICK)
    _, plan = _advised(scaling, _world(of, pods=2), _reading(3 * ONE))
    write = next(action for chain in plan.chains for action in chain.actions if isinstance(action, WriteTable))
    assert write.spec.rung >= 1
    assert write.spec.relief is None
    assert "not known when" in write.message


def test_the_ladder_comes_down_rung_by_rung_and_leaves_the_table_alone_after() -> None:
    of, scaling = _scaled(gpuBudget=4, holdSeconds=0), ModelScaling(QUICK)
    world, rungs = _world(of, pods=2), []
    for step in range(12):
        found, plan = _advised(scaling, world, _reading(2.4 * ONE if step == 0 else 0.5 * ONE))
        writes = [a for chain in plan.chains for a in chain.actions if isinstance(a, WriteTable)]
        rungs += [write.spec.rung for write in writes]
        assert found.table is not None
        now_table = replace(found.table, spec=writes[0].spec) if writes else found.table
        world = replace(world, table=now_table, now=world.now + timedelta(seconds=31))
    assert rungs[0] >= 1
    assert rungs[1:] == list(range(rungs[0] - 1, -1, -1))


def test_the_operators_own_budget_is_shared() -> None:
    of = _scaled()
    around = Surroundings(reports={"v1": REPORT}, free_gpus=3)
    _, plan = _advised(ModelScaling(QUICK), _world(of, pods=2), _reading(9 * ONE), around)
    assert plan.outlooks["v1"].desired == 3


def test_another_writer_is_named_and_we_only_advise() -> None:
    """kubernetes/kubernetes#101648."""
    target = {"apiVersion": "tidewheel.dev/v1alpha1", "kind": "ModelVersion", "name": "chat-v1"}
    owner = [{"kind": "ScaledObject", "name": "chat"}]
    hpa = {
        "metadata": {"namespace": "shop", "name": "keda-hpa-chat", "ownerReferences": owner},
        "spec": {"scaleTargetRef": target},
    }
    writers = other_writers([hpa, {"metadata": {"namespace": "shop", "name": "x"}, "spec": {}}])
    assert writers == {("shop", "chat-v1"): "HorizontalPodAutoscaler keda-hpa-chat of ScaledObject chat"}
    of = _scaled()
    around = replace(AROUND, other_writers={"chat-v1": writers["shop", "chat-v1"]})
    world, plan = _advised(ModelScaling(QUICK), _world(of, pods=2), _reading(9 * ONE), around)
    status = plan_version_status(of, plan, world, {})
    assert status.desired_replicas == 2
    assert status.scaling is not None
    assert "keda-hpa-chat" in status.scaling.message


def test_replicas_on_a_node_that_gave_notice_drain_and_are_replaced() -> None:
    taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
    condition = {"type": "TerminationScheduled", "status": "True"}
    nodes = [
        {"metadata": {"name": "node-1"}, "spec": {"taints": [taint]}},
        {"metadata": {"name": "node-2"}, "status": {"conditions": [condition]}},
        {"metadata": {"name": "node-3"}, "spec": {"taints": [{"key": "nvidia.com/gpu"}]}},
    ]
    leaving = leaving_nodes(nodes)
    assert leaving == {"node-1", "node-2"}
    of = _scaled()
    world = _world(of, pods=2)
    moved = replace(world, pods=(world.pods[0], replace(world.pods[1], node="node-3")))
    around = replace(AROUND, leaving_nodes=leaving)
    _, plan = _advised(ModelScaling(QUICK), moved, _reading(0.5 * ONE), around)
    drains = [a for chain in plan.chains for a in chain.actions if isinstance(a, StartDrain)]
    assert [drain.pod.node for drain in drains] == ["node-1"]
    assert "node-1 has said that it will go" in drains[0].message


def test_new_pods_come_from_reserved_nodes_first_then_from_spot() -> None:
    sources = [
        {"name": "bought", "kind": "reserved", "maxReplicas": 3, "nodeSelector": {"pool": "bought"}},
        {"name": "spot", "kind": "spot", "maxReplicas": 9, "tolerationKeys": ["spot"], "priorityClassName": "low"},
    ]
    _, plan = _advised(ModelScaling(QUICK), _world(_scaled(sources=sources), pods=0), _reading(3 * ONE))
    specs = [action.manifest for action in _creates(plan)]
    assert [found["metadata"]["labels"]["tidewheel.dev/source"] for found in specs] == ["bought"] * 3 + ["spot"] * 2
    assert specs[0]["spec"]["nodeSelector"] == {"pool": "bought"}
    assert specs[-1]["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert specs[-1]["spec"]["priorityClassName"] == "low"


def test_a_start_is_measured_in_phases_once_per_pod() -> None:
    of = _scaled()
    started = pod(
        of,
        meta=meta("chat-v1-0-0", created=ago(100)),
        scheduled=PodCondition("True", since=ago(95)),
        engine=EngineContainer(running_since=ago(60), started=True),
        ready_since=ago(20),
    )
    status = measured_starts([started], None)
    assert status is not None
    (sample,) = status.samples
    assert (sample.scheduled_seconds, sample.image_seconds, sample.engine_seconds) == (5, 35, 40)
    assert sample.total_seconds == 80 == status.p95_seconds
    assert sample.path == "cold"
    assert measured_starts([replace(started, ready_since=ago(1))], status) is status


def test_of_fifty_pods_the_same_twenty_starts_are_kept_at_every_look() -> None:
    """Found on simulated nodes: the status of a version with more than twenty replicas was rewritten for ever."""
    of = _scaled()
    pods = [
        pod(
            of,
            slot,
            meta=meta(f"chat-v1-{slot}-0", created=ago(100)),
            engine=EngineContainer(running_since=ago(60), started=True),
            ready_since=ago(20 + slot // 10),
        )
        for slot in range(50)
    ]
    status = measured_starts(pods, None)
    assert status is not None
    assert len(status.samples) == 20
    assert measured_starts(pods, status) is status
    assert measured_starts(pods[::-1], status) is status


def test_a_container_that_restarted_is_no_start() -> None:
    again = pod(_scaled(), ready_since=ago(1), engine=EngineContainer(running_since=ago(5), started=True, restarts=1))
    assert measured_starts([again], None) is None


def test_what_was_learnt_survives_a_restart() -> None:
    of, first = _scaled(), ModelScaling(QUICK)
    world = _world(of)
    for step in range(200):
        first.advise(replace(world, now=NOW + timedelta(seconds=300 * step)), _reading(ONE * (1 + step % 7)), AROUND)
    assert first.outlook is not None
    text = profile_text(first.outlook, buckets=5_000)
    assert text is not None
    second = ModelScaling(QUICK)
    saved = saved_buckets(text, step_seconds=300)
    assert len(saved) == 199
    second.learn_past(world, *joined({}, saved), complete=True)
    second.advise(replace(world, now=NOW + timedelta(seconds=300 * 199)), _reading(ONE), AROUND)
    assert second.outlook is not None
    assert second.outlook.next_bucket == first.outlook.next_bucket
    assert second.outlook.recent_buckets(Unit.DECODE, 5) == pytest.approx(
        first.outlook.recent_buckets(Unit.DECODE, 5), rel=0.01
    )
    assert saved_buckets("not json", step_seconds=300) == {}
    assert saved_buckets('{"format":9}', step_seconds=300) == {}
    assert saved_buckets(text, step_seconds=60) == {}


def test_while_history_is_being_read_nothing_shrinks_and_the_status_says_so() -> None:
    """An operator that begins right before the ramp must not take away what the one before it has ordered."""
    of, scaling = _scaled(holdSeconds=0), ModelScaling(QUICK, knows_past=False)
    world, plan = _advised(scaling, _world(of, pods=5), _reading(0.5 * ONE))
    assert plan.outlooks["v1"].desired == 5
    status = plan_version_status(of, plan, world, {})
    assert status.scaling is not None
    assert "history is still being read, so nothing shrinks" in status.scaling.message
    scaling.learn_past(world, 0, (), complete=False)
    assert _advised(scaling, world, _reading(0.5 * ONE))[1].outlooks["v1"].desired == 5
    scaling.learn_past(world, 0, (), complete=True)
    assert _advised(scaling, world, _reading(0.5 * ONE))[1].outlooks["v1"].desired == 2


@pytest.mark.parametrize("past", [(), (_demand(10.0), _demand(20.0))], ids=["an empty past", "a past"])
def test_what_was_seen_while_history_was_being_read_is_kept(past: tuple[Demand, ...]) -> None:
    scaling, world, first = ModelScaling(QUICK, knows_past=False), _world(_scaled()), int(NOW.timestamp() // 300)
    for step in range(3):
        scaling.advise(replace(world, now=NOW + timedelta(seconds=300 * step)), _reading(100.0 * (step + 1)), AROUND)
    scaling.learn_past(world, first - len(past), past, complete=True)
    scaling.advise(replace(world, now=NOW + timedelta(seconds=660)), _reading(400.0), AROUND)
    assert scaling.outlook is not None
    known = scaling.outlook.recent_buckets(Unit.DECODE, 9)
    assert known == pytest.approx([*(demand.decode for demand in past), 100.0, 200.0])


def test_before_the_first_look_at_demand_a_scaled_version_keeps_its_size() -> None:
    of = _scaled()
    plan = plan_model(_world(of, pods=4), settings=SETTINGS, new_salt="salt")
    assert plan.outlooks["v1"].desired == 4


def test_a_bucket_that_waits_for_its_turn_is_closed_with_its_own_samples() -> None:
    scaling, world = ModelScaling(QUICK), _world(_scaled())
    for step in range(45):  # the first bucket has 20 looks at 100, the next ones have 300
        now = NOW + timedelta(seconds=15 * step)
        rate = 100.0 if now.timestamp() // 300 == NOW.timestamp() // 300 else 300.0
        scaling.advise(replace(world, now=now), _reading(rate), AROUND, may_close=step == 44)
        assert scaling.has_ended(now.timestamp()) is (now.timestamp() // 300 > NOW.timestamp() // 300 and step < 44)
    assert scaling.outlook is not None
    assert scaling.outlook.recent_buckets(Unit.DECODE, 2) == pytest.approx([100.0, 300.0])


def test_an_engines_load_gives_its_limits() -> None:
    fit = {"base": 0.005, "per_prefill_token": 1e-5, "per_decode": 5e-5, "per_context_token": 0.0}
    report = engine_report({"total_blocks": 100, "max_num_seqs": 8, "step_time_fit": fit, "running": 0})
    assert report.kv_tokens == 1_600
    assert report.steps is not None
    assert engine_report({"total_blocks": 1, "max_num_seqs": 1}).steps is None
    with pytest.raises(KeyError):
        engine_report({"status": "ok"})


class _Prometheus:
    """Answers by what the query asks for; raises where told."""

    def __init__(self, *, rates: Mapping[str, float], broken: bool = False) -> None:
        self._rates = rates
        self._broken = broken

    async def instant(self, query: str, *, at: float) -> Answer:
        if self._broken:
            raise PrometheusError("http://prometheus: connection refused")
        labels = {"namespace": "shop", "model": "chat"}
        if "offered_tokens" in query and query.startswith("sum"):
            return Answer(samples=tuple(Sample({**labels, "kind": kind}, value) for kind, value in self._rates.items()))
        if query.startswith("count"):
            return Answer(samples=(Sample(labels, 3.0),))
        return Answer(samples=(Sample(labels, float("nan")),))


@pytest.mark.parametrize(
    ("rates", "known"),
    [
        ({"prompt": 10.0, "output": 5.0}, True),
        ({"prompt": 0.0, "output": 0.0}, True),
        ({"prompt": float("nan"), "output": 5.0}, False),
        ({"output": 5.0}, False),
        ({}, False),
    ],
)
async def test_what_prometheus_does_not_say_is_missing_and_zero_is_zero(rates: dict[str, float], known: bool) -> None:
    reader = DemandReader(_Prometheus(rates=rates), window_seconds=60)  # type: ignore[arg-type]
    reading = await reader.read(NOW.timestamp())
    assert (KEY in reading.models) is known
    if known:
        assert reading.models[KEY].reporters == 3
        assert reading.models[KEY].cached_share == 0.0


async def test_a_prometheus_that_is_down_is_a_reading_that_says_so() -> None:
    reader = DemandReader(_Prometheus(rates={}, broken=True), window_seconds=60)  # type: ignore[arg-type]
    assert "connection refused" in (await reader.read(NOW.timestamp())).error
