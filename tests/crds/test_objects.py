"""Good objects on the real API server: defaults, round trips, scale, columns, names that fit."""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.crds.builders import DIGEST, Json, broken, model_version, routing_rule, routing_table, with_

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.kubernetes import (
    MODEL_VERSIONS,
    NAMESPACES,
    PODS,
    ROUTING_RULES,
    ROUTING_TABLES,
    SERVICES,
    KubeClient,
    load_access,
)
from tidewheel.crds.base import MAXIMUM_REPLICAS, MODEL_NAME_LENGTH, VERSION_NAME_LENGTH
from tidewheel.crds.definitions import DEFINITIONS, UNSEEN_STATUS
from tidewheel.crds.digest import digest
from tidewheel.crds.modelversion import ModelVersionSpec
from tidewheel.crds.names import GROUP, MODEL_LABEL, UID_LABEL, VERSION_LABEL, model_version_name
from tidewheel.crds.routingrule import RoutingRuleSpec
from tidewheel.crds.routingtable import RoutingTableSpec

pytestmark = pytest.mark.component


@pytest.fixture
async def client(installed: ControlPlane) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_access(kubeconfig=installed.kubeconfig), user_agent="tidewheel-test") as opened:
        yield opened


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    name = f"test-{secrets.token_hex(4)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


FULL_VERSION = model_version(
    artifact={"uri": "pvc://models/chat/v1/", "sha256": "a" * 64},
    engine={
        "runtime": "tidewheel",
        "image": "tidewheel:dev@sha256:1",
        "maxModelLen": 8192,
        "dtype": "float32",
        "args": ["--kv-memory", "2Gi"],
    },
    replica={
        "gpus": 4,
        "gpuResource": "example.com/Big_GPU.v2",
        "cpu": 8,
        "memory": "64Gi",
        "pod": {
            "labels": {"example.com/team": "search"},
            "annotations": {"note": "x"},
            "nodeSelector": {"pool": "big"},
            "affinity": {"podAntiAffinity": {}},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
            ],
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "serviceAccountName": "engine",
            "imagePullSecrets": [{"name": "pull"}],
            "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}],
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
            "securityContext": {"runAsNonRoot": True},
            "terminationGracePeriodSeconds": 60,
        },
    },
    slo={"ttftMs": 500, "tpotMs": 30},
    scaling={"minReplicas": 1, "maxReplicas": 9},
    drain={"timeoutSeconds": 5},
)
FULL_TABLE = broken(
    routing_table(v1=9900, v2=100),
    with_("spec.previous", [{"version": "v1", "weight": 10_000, "digest": DIGEST}]),
    with_("spec.rejected", [{"digest": DIGEST, "version": "v0", "reason": "slow", "at": "2026-01-01T00:00:00.5Z"}]),
    with_("spec.keepWarm", [{"version": "v0", "digest": "sha256:v0", "weight": 5000, "until": "2026-01-01T00:00:00Z"}]),
    with_("spec.ruleUid", "uid"),
    with_("spec.ruleGeneration", 7),
    with_("spec.salt", "pepper"),
    with_("spec.orphanedAt", "2026-01-01T00:00:00Z"),
)


@pytest.mark.parametrize(
    ("resource", "record", "body"),
    [
        pytest.param(MODEL_VERSIONS, ModelVersionSpec, model_version(), id="least ModelVersion"),
        pytest.param(MODEL_VERSIONS, ModelVersionSpec, FULL_VERSION, id="full ModelVersion"),
        pytest.param(ROUTING_RULES, RoutingRuleSpec, routing_rule(v1=90, v2=10), id="RoutingRule"),
        pytest.param(ROUTING_TABLES, RoutingTableSpec, routing_table(), id="least RoutingTable"),
        pytest.param(ROUTING_TABLES, RoutingTableSpec, FULL_TABLE, id="full RoutingTable"),
    ],
)
async def test_a_good_object_means_the_same_before_and_after_the_api_server(
    client: KubeClient, namespace: str, resource: Any, record: Any, body: Json
) -> None:
    """The server's defaults are Python's, nothing is pruned, and what Python writes is accepted again."""
    sent = broken(body, with_("metadata.namespace", namespace))
    stored = await client.create(resource, sent)
    assert record.model_validate(stored["spec"]) == record.model_validate(sent["spec"])
    assert _contains(stored["spec"], sent["spec"])
    if resource is not MODEL_VERSIONS:  # programs write only the others
        again = await client.replace(resource, {**stored, "spec": record.model_validate(stored["spec"]).to_wire()})
        assert record.model_validate(again["spec"]) == record.model_validate(sent["spec"])


def _contains(stored: Any, sent: Any) -> bool:
    if isinstance(sent, dict):
        return all(key in stored and _contains(stored[key], value) for key, value in sent.items())
    if isinstance(sent, list):
        return len(stored) == len(sent) and all(map(_contains, stored, sent))
    return bool(stored == sent)


async def test_the_digest_is_the_same_before_and_after_the_api_server(client: KubeClient, namespace: str) -> None:
    sent = model_version(namespace=namespace)
    stored = await client.create(MODEL_VERSIONS, sent)
    assert stored["spec"] != sent["spec"], "the server filled in defaults"
    assert digest(ModelVersionSpec.model_validate(stored["spec"])) == digest(
        ModelVersionSpec.model_validate(sent["spec"])
    )


async def test_a_version_can_be_scaled_by_anybody_who_scales(
    installed: ControlPlane, client: KubeClient, namespace: str
) -> None:
    await client.create(MODEL_VERSIONS, model_version(namespace=namespace))
    installed.kubectl("scale", "mv/chat-v1", "--replicas=3", f"--namespace={namespace}")
    assert (await client.get(MODEL_VERSIONS, "chat-v1", namespace))["spec"]["replicas"] == 3
    status = {"metadata": {"name": "chat-v1", "namespace": namespace}, "status": {"replicas": 2, "selector": "a=b"}}
    await client.apply_status(MODEL_VERSIONS, status)
    scale = await client.get(MODEL_VERSIONS, "chat-v1", namespace, subresource="scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 2, "selector": "a=b"})


async def test_a_status_write_changes_no_spec_and_a_spec_write_no_status(client: KubeClient, namespace: str) -> None:
    created = await client.create(MODEL_VERSIONS, {**model_version(namespace=namespace), "status": {"phase": "Ready"}})
    assert created["status"] == UNSEEN_STATUS
    name = {"name": "chat-v1", "namespace": namespace}
    written = await client.apply_status(
        MODEL_VERSIONS, {"metadata": name, "spec": {"replicas": 9}, "status": {"phase": "Idle"}}
    )
    assert written["status"] == {**UNSEEN_STATUS, "phase": "Idle"}
    assert "replicas" not in written["spec"]
    assert written["metadata"]["generation"] == 1


async def test_two_writers_own_their_own_conditions(client: KubeClient, namespace: str) -> None:
    await client.create(ROUTING_RULES, routing_rule(namespace=namespace))
    for manager, kind in (("one", "Ready"), ("two", "Degraded")):
        condition = {
            "type": kind,
            "status": "True",
            "reason": "Tried",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
        body = {"metadata": {"name": "chat", "namespace": namespace}, "status": {"conditions": [condition]}}
        await client.apply_status(ROUTING_RULES, body, field_manager=manager)
    rule = await client.get(ROUTING_RULES, "chat", namespace)
    assert [condition["type"] for condition in rule["status"]["conditions"]] == ["Ready", "Degraded"]


async def test_columns_tell_what_an_sre_wants(installed: ControlPlane, client: KubeClient, namespace: str) -> None:
    await client.create(MODEL_VERSIONS, model_version(namespace=namespace))
    await client.create(ROUTING_RULES, routing_rule(namespace=namespace))
    await client.create(ROUTING_TABLES, routing_table(namespace=namespace))
    version = {"phase": "Canary", "ready": "1/2", "desiredReplicas": 2}
    await client.apply_status(
        MODEL_VERSIONS, {"metadata": {"name": "chat-v1", "namespace": namespace}, "status": version}
    )
    rule = {"split": "v42:95% v43:5%"}
    await client.apply_status(ROUTING_RULES, {"metadata": {"name": "chat", "namespace": namespace}, "status": rule})
    printed = installed.kubectl("get", "mv,rr,rt", f"--namespace={namespace}")
    for words in ("PHASE", "READY", "Canary", "1/2", "TRAFFIC", "v42:95% v43:5%", "CAUSE", "RuleApplied", "AGE"):
        assert words in printed
    assert "chat-v1" in installed.kubectl("get", "tidewheel", f"--namespace={namespace}")
    assert "MESSAGE" in installed.kubectl("get", "mv", "--output=wide", f"--namespace={namespace}")


async def test_the_longest_names_fit_wherever_they_go(client: KubeClient, namespace: str) -> None:
    """Service and label values hold 63 characters, a pod's name 253; slot and incarnation are the largest thinkable."""
    model, version = "m" * MODEL_NAME_LENGTH, "v" * VERSION_NAME_LENGTH
    name = model_version_name(model, version)
    body = broken(
        model_version(name="x-y", namespace=namespace),
        with_("metadata.name", name),
        with_("spec.model", model),
        with_("spec.version", version),
    )
    stored = await client.create(MODEL_VERSIONS, body)
    labels = {MODEL_LABEL: model, VERSION_LABEL: version, UID_LABEL: stored["metadata"]["uid"]}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    await client.create(SERVICES, {"metadata": metadata, "spec": {"clusterIP": "None", "selector": labels}})
    pod_name = f"{name}-{MAXIMUM_REPLICAS - 1}-{2**31}"
    pod = {
        "metadata": {**metadata, "name": pod_name},
        "spec": {"automountServiceAccountToken": False, "containers": [{"name": "engine", "image": "x"}]},
    }
    # Without a controller-manager the namespace has no default account for the pod: another one is good enough.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await client.request_raw(
        "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", body=json.dumps(account).encode()
    )
    assert (await client.create(PODS, pod))["metadata"]["name"] == pod_name


def _fields(installed: ControlPlane) -> Iterator[tuple[str, Json]]:
    """Every field of every kind as the API server publishes it."""
    document = json.loads(installed.kubectl("get", "--raw", f"/openapi/v3/apis/{GROUP}/v1alpha1"))
    schemas = document["components"]["schemas"]
    for definition in DEFINITIONS:
        (schema,) = (value for key, value in schemas.items() if key.endswith(f".{definition.kind}"))
        for part in ("spec", "status"):
            if part in schema["properties"]:
                yield from _walk(f"{definition.kind}.{part}", schema["properties"][part])


def _walk(path: str, schema: Json) -> Iterator[tuple[str, Json]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _walk(f"{path}.{name}", part)
    if isinstance(items := schema.get("items"), dict):
        for name, part in items.get("properties", {}).items():
            yield from _walk(f"{path}[].{name}", part)


def test_kubectl_explain_has_words_on_every_field(installed: ControlPlane) -> None:
    fields = dict(_fields(installed))
    assert len(fields) > 100
    assert [path for path, schema in fields.items() if not schema.get("description")] == []
    explained = installed.kubectl("explain", "mv.spec.replica.memory")
    assert "in bytes, as a Kubernetes quantity such as 64Gi" in " ".join(explained.split())
