"""What the API server itself says to a bad object: the field, and the way out."""

import re
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.crds.builders import DIGEST, Break, Json, broken, model_version, routing_rule, routing_table, with_, without

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.errors import ApiError, Invalid
from tidewheel.clients.kubernetes import (
    MODEL_VERSIONS,
    NAMESPACES,
    ROUTING_RULES,
    ROUTING_TABLES,
    KubeClient,
    load_access,
)

pytestmark = pytest.mark.component

RESOURCES = {"ModelVersion": MODEL_VERSIONS, "RoutingRule": ROUTING_RULES, "RoutingTable": ROUTING_TABLES}
MANY_LABELS = {f"l{number}": "x" for number in range(33)}
NINE_SHARES: dict[str, Any] = {**{f"v{number}": 0 for number in range(8)}, "v9": 100}
EVENT: dict[str, Any] = {
    "name": "launch",
    "start": "2027-01-01T00:00:00Z",
    "end": "2027-01-02T00:00:00Z",
    "multiplier": 3.0,
}
SOURCE: dict[str, Any] = {"name": "spot", "kind": "spot", "maxReplicas": 3, "nodeSelector": {"pool": "spot"}}
FULL_SCALING: dict[str, Any] = {
    "maxReplicas": 5,
    "mode": "advise",
    "quantile": 0.95,
    "timeZone": "America/Argentina/Buenos_Aires",
    "events": [EVENT],
    "sources": [SOURCE],
    "gpuBudget": 4,
    "scaleToZero": True,
}
DNS = "must be lower-case letters, digits and '-'"


@pytest.fixture
async def client(installed: ControlPlane) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_access(kubeconfig=installed.kubeconfig), user_agent="tidewheel-test") as opened:
        yield opened


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    name = f"test-{secrets.token_hex(4)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


def bad(case: str, body: Json, *breaks: Break, field: str, way_out: str) -> Any:
    """One line of the table: ``field`` and ``way_out`` must both be in what the API server says."""
    return pytest.param(broken(body, *breaks), field, way_out, id=case)


MV, RR, RT = model_version(), routing_rule(), routing_table()

BAD_OBJECTS = [
    # --- ModelVersion: names -------------------------------------------------------------------------------------
    bad(
        "name is not model-version",
        MV,
        with_("metadata.name", "chat-v2"),
        field="metadata.name",
        way_out="must be <spec.model>-<spec.version>, here chat-v1",
    ),
    bad(
        "model too long for a label",
        MV,
        with_("spec.model", "m" * 41),
        with_("metadata.name", "m" * 41 + "-v1"),
        field="spec.model",
        way_out="may not be more than 40",
    ),
    bad(
        "version too long",
        MV,
        with_("spec.version", "v" * 21),
        with_("metadata.name", "chat-" + "v" * 21),
        field="spec.version",
        way_out="may not be more than 20",
    ),
    bad(
        "name too long for a Service",
        MV,
        with_("metadata.name", "m" * 62),
        field="metadata.name",
        way_out="may not be more than 61",
    ),
    bad("model in capitals", MV, with_("spec.model", "Chat"), field="spec.model", way_out=DNS),
    bad(
        "model begins with a digit", MV, with_("spec.model", "4chat"), field="spec.model", way_out="begin with a letter"
    ),
    bad("model with a dot", MV, with_("spec.model", "chat.4"), field="spec.model", way_out=DNS),
    bad("empty version", MV, with_("spec.version", ""), field="spec.version", way_out="at least 1 chars long"),
    bad("version ends with -", MV, with_("spec.version", "v1-"), field="spec.version", way_out="neither begin nor end"),
    # --- ModelVersion: artifact ----------------------------------------------------------------------------------
    bad("no artifact", MV, without("spec.artifact"), field="spec.artifact", way_out="Required value"),
    bad("no uri", MV, with_("spec.artifact", {}), field="spec.artifact.uri", way_out="Required value"),
    bad(
        "uri scheme that is not served",
        MV,
        with_("spec.artifact.uri", "s3://models/chat/"),
        field="spec.artifact.uri",
        way_out="must be file:///PATH or pvc://CLAIM/PATH",
    ),
    bad(
        "uri with a relative path",
        MV,
        with_("spec.artifact.uri", "file://models/chat"),
        field="spec.artifact.uri",
        way_out="must be file:///PATH or pvc://CLAIM/PATH",
    ),
    bad(
        "sha256 too short",
        MV,
        with_("spec.artifact.sha256", "abc123"),
        field="spec.artifact.sha256",
        way_out="must be the 64 lower-case hex digits that sha256sum prints",
    ),
    bad(
        "sha256 in capitals",
        MV,
        with_("spec.artifact.sha256", "A" * 64),
        field="spec.artifact.sha256",
        way_out="64 lower-case hex digits",
    ),
    # --- ModelVersion: engine ------------------------------------------------------------------------------------
    bad("no image", MV, with_("spec.engine", {}), field="spec.engine.image", way_out="Required value"),
    bad(
        "image with a space",
        MV,
        with_("spec.engine.image", "tidewheel :dev"),
        field="spec.engine.image",
        way_out="must be an image reference without spaces",
    ),
    bad(
        "unknown runtime",
        MV,
        with_("spec.engine.runtime", "vllm"),
        field="spec.engine.runtime",
        way_out='supported values: "tidewheel"',
    ),
    bad(
        "unknown dtype",
        MV,
        with_("spec.engine.dtype", "int4"),
        field="spec.engine.dtype",
        way_out='supported values: "bfloat16", "float32"',
    ),
    bad(
        "maxModelLen of nothing",
        MV,
        with_("spec.engine.maxModelLen", 0),
        field="spec.engine.maxModelLen",
        way_out="should be greater than or equal to 16",
    ),
    bad(
        "maxModelLen as a string",
        MV,
        with_("spec.engine.maxModelLen", "8k"),
        field="spec.engine.maxModelLen",
        way_out="must be of type integer",
    ),
    bad(
        "too many arguments",
        MV,
        with_("spec.engine.args", ["--x"] * 65),
        field="spec.engine.args",
        way_out="must have at most 64 items",
    ),
    # --- ModelVersion: replica -----------------------------------------------------------------------------------
    bad(
        "wrong quantity of memory",
        MV,
        with_("spec.replica.memory", "64 GB"),
        field="spec.replica.memory",
        way_out="must be a Kubernetes quantity above zero, such as 500m, 2 or 64Gi",
    ),
    bad("no CPU at all", MV, with_("spec.replica.cpu", 0), field="spec.replica.cpu", way_out="above zero"),
    bad(
        "negative GPUs",
        MV,
        with_("spec.replica.gpus", -1),
        field="spec.replica.gpus",
        way_out="should be greater than or equal to 0",
    ),
    bad(
        "half a GPU", MV, with_("spec.replica.gpus", 0.5), field="spec.replica.gpus", way_out="must be of type integer"
    ),
    bad(
        "gpuResource without a domain",
        MV,
        with_("spec.replica.gpuResource", "gpu"),
        field="spec.replica.gpuResource",
        way_out="DOMAIN/NAME, such as nvidia.com/gpu",
    ),
    bad(
        "a label of ours in the overlay",
        MV,
        with_("spec.replica.pod.labels", {"tidewheel.dev/model": "other"}),
        field="spec.replica.pod.labels",
        way_out="set by the operator; remove them",
    ),
    bad(
        "a label value that is none",
        MV,
        with_("spec.replica.pod.labels", {"team": "a b"}),
        field="spec.replica.pod.labels",
        way_out="must be valid label keys and values",
    ),
    bad(
        "too many labels",
        MV,
        with_("spec.replica.pod.labels", MANY_LABELS),
        field="spec.replica.pod.labels",
        way_out="must have at most 32",
    ),
    bad(
        "an environment variable without a name",
        MV,
        with_("spec.replica.pod.env", [{"value": "x"}]),
        field="spec.replica.pod.env[0].name",
        way_out="Required value",
    ),
    bad(
        "a mount without a path",
        MV,
        with_("spec.replica.pod.volumeMounts", [{"name": "x"}]),
        field="spec.replica.pod.volumeMounts[0].mountPath",
        way_out="Required value",
    ),
    bad(
        "no time between SIGTERM and SIGKILL",
        MV,
        with_("spec.replica.pod.terminationGracePeriodSeconds", 0),
        field="spec.replica.pod.terminationGracePeriodSeconds",
        way_out="should be greater than or equal to 1",
    ),
    # --- ModelVersion: scale, slo, drain -------------------------------------------------------------------------
    bad(
        "negative replicas",
        MV,
        with_("spec.replicas", -1),
        field="spec.replicas",
        way_out="should be greater than or equal to 0",
    ),
    bad(
        "replicas beside scaling",
        MV,
        with_("spec.replicas", 1),
        with_("spec.scaling", {"maxReplicas": 2}),
        field="spec.replicas",
        way_out="replicas and scaling exclude each other; remove one",
    ),
    bad(
        "minReplicas above maxReplicas",
        MV,
        with_("spec.scaling", {"minReplicas": 3, "maxReplicas": 2}),
        field="spec.scaling.minReplicas",
        way_out="lower the one or raise the other",
    ),
    bad(
        "scale to zero with a minimum",
        MV,
        with_("spec.scaling", {"minReplicas": 1, "maxReplicas": 3, "scaleToZero": True}),
        field="spec.scaling.scaleToZero",
        way_out="scaleToZero needs scaling.minReplicas 0",
    ),
    bad(
        "an event that ends before it starts",
        MV,
        with_("spec.scaling", {"maxReplicas": 3, "events": [EVENT | {"end": "2026-12-01T00:00:00Z"}]}),
        field="spec.scaling.events",
        way_out="must end after it starts",
    ),
    bad(
        "a mode that is none",
        MV,
        with_("spec.scaling", {"maxReplicas": 3, "mode": "auto"}),
        field="spec.scaling.mode",
        way_out='supported values: "observe", "advise", "floor", "full"',
    ),
    bad(
        "a time zone that is none",
        MV,
        with_("spec.scaling", {"maxReplicas": 3, "timeZone": "Europe / Berlin"}),
        field="spec.scaling.timeZone",
        way_out="must be a name of the time zone database",
    ),
    bad(
        "scaling without a maximum",
        MV,
        with_("spec.scaling", {"minReplicas": 3}),
        field="spec.scaling.maxReplicas",
        way_out="Required value",
    ),
    bad(
        "negative latency",
        MV,
        with_("spec.slo.tpotMs", -5),
        field="spec.slo.tpotMs",
        way_out="should be greater than or equal to 1",
    ),
    bad(
        "a drain of a week",
        MV,
        with_("spec.drain.timeoutSeconds", 604_800),
        field="spec.drain.timeoutSeconds",
        way_out="should be less than or equal to 86400",
    ),
    # --- any kind ------------------------------------------------------------------------------------------------
    bad("unknown field", MV, with_("spec.replcas", 2), field="spec.replcas", way_out="unknown field"),
    bad("unknown nested field", RR, with_("spec.rollout.bake", 2), field="spec.rollout.bake", way_out="unknown field"),
    bad("no spec", MV, without("spec"), field="spec", way_out="Required value"),
    bad("spec is a list", MV, with_("spec", []), field="spec", way_out="must be of type object"),
    # --- RoutingRule ---------------------------------------------------------------------------------------------
    bad(
        "percents below 100",
        routing_rule(v1=90, v2=5),
        field="spec.traffic",
        way_out="traffic percents must sum to 100",
    ),
    bad("percents above 100", routing_rule(v1=90, v2=20), field="spec.traffic", way_out="must sum to 100"),
    bad(
        "one percent above 100",
        routing_rule(v1=110),
        field="spec.traffic[0].percent",
        way_out="should be less than or equal to 100",
    ),
    bad(
        "negative percent",
        routing_rule(v1=110, v2=-10),
        field="spec.traffic[1].percent",
        way_out="should be greater than or equal to 0",
    ),
    bad(
        "half a percent",
        RR,
        with_("spec.traffic.0.percent", 99.5),
        field="spec.traffic[0].percent",
        way_out="must be of type integer",
    ),
    bad(
        "a version twice",
        RR,
        with_("spec.traffic", [{"version": "v1", "percent": 50}] * 2),
        field="spec.traffic[1]",
        way_out='Duplicate value: {"version":"v1"}',
    ),
    bad(
        "nine versions",
        routing_rule(**NINE_SHARES),
        field="spec.traffic",
        way_out="must have at most 8 items",
    ),
    bad("no version", RR, with_("spec.traffic", []), field="spec.traffic", way_out="at least 1 items"),
    bad(
        "a share without a version",
        RR,
        with_("spec.traffic", [{"percent": 100}]),
        field="spec.traffic[0].version",
        way_out="Required",
    ),
    bad(
        "rule not named for its model",
        RR,
        with_("metadata.name", "talk"),
        field="metadata.name",
        way_out="must equal spec.model, here chat",
    ),
    bad(
        "negative time to stay warm",
        RR,
        with_("spec.rollout.keepPreviousSeconds", -1),
        field="spec.rollout.keepPreviousSeconds",
        way_out="should be greater than or equal to 0",
    ),
    bad(
        "a step in percent and in basis points",
        RR,
        with_("spec.rollout.steps", [{"percent": 1, "basisPoints": 100}]),
        field="spec.rollout.steps",
        way_out="must say either percent or basisPoints",
    ),
    bad(
        "a step without a share",
        RR,
        with_("spec.rollout.steps", [{"bakeSeconds": 60}]),
        field="spec.rollout.steps",
        way_out="must say either percent or basisPoints",
    ),
    bad(
        "steps that go back",
        RR,
        with_("spec.rollout.steps", [{"percent": 5}, {"basisPoints": 10}, {"percent": 100}]),
        field="spec.rollout.steps",
        way_out="must grow from one to the next",
    ),
    bad(
        "the same step twice",
        RR,
        with_("spec.rollout.steps", [{"percent": 1}, {"basisPoints": 100}]),
        field="spec.rollout.steps",
        way_out="must grow from one to the next",
    ),
    bad(
        "a limit that is not known",
        RR,
        with_("spec.rollout.judge.maxErrorRate", 0.1),
        field="spec.rollout.judge.maxErrorRate",
        way_out="unknown field",
    ),
    bad(
        "a metric that is not known",
        RR,
        with_("spec.rollout.judge.metrics", ["happiness"]),
        field="spec.rollout.judge.metrics[0]",
        way_out='supported values: "errors"',
    ),
    bad(
        "a query without its version",
        RR,
        with_("spec.rollout.judge.custom", [{"name": "refusals", "query": "sum(refusals)", "limit": 1}]),
        field="spec.rollout.judge.custom[0].query",
        way_out="must contain {{version}}",
    ),
    bad(
        "blocks of fewer than four scrapes",
        RR,
        with_("spec.rollout.judge", {"blockSeconds": 10, "scrapeSeconds": 5}),
        field="spec.rollout.judge",
        way_out="at least four times scrapeSeconds",
    ),
    bad(
        "an hour that is none",
        RR,
        with_("spec.rollout.changeWindows", [{"start": "9 am", "end": "17:00"}]),
        field="spec.rollout.changeWindows[0].start",
        way_out="should match",
    ),
    # --- RoutingTable --------------------------------------------------------------------------------------------
    bad(
        "weights not 10000",
        routing_table(v1=9000, v2=999),
        field="spec.targets",
        way_out="must sum to 10000 basis points",
    ),
    bad(
        "previous weights not 10000",
        RT,
        with_("spec.previous", [{"version": "v0", "weight": 1, "digest": DIGEST}]),
        field="spec.previous",
        way_out="must sum to 10000 basis points",
    ),
    bad("no cause", RT, without("spec.cause"), field="spec.cause", way_out="Required value"),
    bad(
        "a moment that is none",
        RT,
        with_("spec.cause.at", "yesterday"),
        field="spec.cause.at",
        way_out="must be of type date-time",
    ),
    bad("no target", RT, with_("spec.targets", []), field="spec.targets", way_out="at least 1 items"),
    bad(
        "a target twice",
        RT,
        with_("spec.targets", [{"version": "v1", "weight": 5000, "digest": DIGEST}] * 2),
        field="spec.targets[1]",
        way_out="Duplicate value",
    ),
    bad(
        "table not named for its model",
        RT,
        with_("metadata.name", "talk"),
        field="metadata.name",
        way_out="must equal spec.model, here chat",
    ),
]


@pytest.mark.parametrize(("body", "field", "way_out"), BAD_OBJECTS)
async def test_a_bad_object_gets_a_sentence_from_the_api_server(
    client: KubeClient, body: Json, field: str, way_out: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(RESOURCES[body["kind"]], body)
    words = refused.value.message
    assert re.search(rf"(?<![\w.]){re.escape(field)}(?!\w)", words), words
    assert way_out in words


def test_the_table_is_long_enough() -> None:
    assert len(BAD_OBJECTS) >= 35


UPDATES = [
    ("model", with_("spec.model", "talk"), "model is immutable; create another ModelVersion"),
    ("version", with_("spec.version", "v2"), "version is immutable; create another ModelVersion"),
    ("artifact", with_("spec.artifact.uri", "file:///models/other"), "artifact is immutable; create another version"),
    ("sha256 given later", with_("spec.artifact.sha256", "0" * 64), "artifact is immutable"),
    ("image", with_("spec.engine.image", "other:1"), "engine is immutable; create another version and move traffic"),
    ("arguments", with_("spec.engine.args", ["--fast"]), "engine is immutable"),
    ("GPUs", with_("spec.replica.gpus", 2), "replica is immutable; create another version and move traffic"),
    ("a label", with_("spec.replica.pod.labels", {"team": "b"}), "replica is immutable"),
    ("inside what is passed on", with_("spec.replica.pod.affinity.nodeAffinity.weight", 2), "replica is immutable"),
    ("the environment", with_("spec.replica.pod.env.0.value", "c"), "replica is immutable"),
]


@pytest.mark.parametrize(("change", "sentence"), [pytest.param(*rest, id=case) for case, *rest in UPDATES])
async def test_what_changes_behaviour_cannot_be_changed(
    client: KubeClient, namespace: str, change: Break, sentence: str
) -> None:
    pod = {"labels": {"team": "a"}, "affinity": {"nodeAffinity": {"weight": 1}}, "env": [{"name": "A", "value": "b"}]}
    created = await client.create(MODEL_VERSIONS, model_version(namespace=namespace, replica={"pod": pod}))
    with pytest.raises(Invalid, match=re.escape(sentence)):
        await client.replace(MODEL_VERSIONS, broken(created, change))


@pytest.mark.parametrize("build", [routing_rule, routing_table])
async def test_a_rule_or_table_keeps_its_model(client: KubeClient, namespace: str, build: Any) -> None:
    created = await client.create(RESOURCES[build()["kind"]], build(namespace=namespace))
    with pytest.raises(Invalid, match=r"spec.model: .*model is immutable"):
        await client.replace(RESOURCES[created["kind"]], broken(created, with_("spec.model", "talk")))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(with_("spec.replicas", 5), id="replicas"),
        pytest.param(with_("spec.scaling", {"minReplicas": 1, "maxReplicas": 5}), id="scaling"),
        pytest.param(with_("spec.scaling", FULL_SCALING), id="scaling with all that it may have"),
        pytest.param(with_("spec.slo.tpotMs", 30), id="slo"),
        pytest.param(with_("spec.drain.timeoutSeconds", 5), id="drain"),
    ],
)
async def test_the_rest_can(client: KubeClient, namespace: str, change: Break) -> None:
    created = await client.create(MODEL_VERSIONS, model_version(namespace=namespace))
    changed = await client.replace(MODEL_VERSIONS, broken(created, change))
    assert changed["metadata"]["generation"] == 2


async def test_the_second_version_of_a_name_is_refused(client: KubeClient, namespace: str) -> None:
    """(model, version) is unique because the name is made of them: two spellings of one name are one object."""
    await client.create(MODEL_VERSIONS, model_version(namespace=namespace))
    with pytest.raises(ApiError, match='"chat-v1" already exists'):
        await client.create(MODEL_VERSIONS, model_version(namespace=namespace))
