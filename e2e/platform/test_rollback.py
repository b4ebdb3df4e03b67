"""`kubectl rollback` on a real cluster: by an SRE, under load, with the operator stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.platform.installation import RELEASE_NAMESPACE, SERVING_NAMESPACE, Installation
from e2e.platform.models import Model
from e2e.platform.traffic import steady_load
from kubernetes import client as official
from kubernetes import config as official_config
from tests.waiting import eventually

_PLUGIN = Path(sys.executable).with_name("kubectl-rollback")
_SRE = "ada"
_ACTOR = f"system:serviceaccount:{SERVING_NAMESPACE}:{_SRE}"


@pytest.fixture
def sre(tidewheel: Installation, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of somebody with the chart's Role tidewheel-sre and no other rights."""
    bindings = [(SERVING_NAMESPACE, "tidewheel-sre"), (RELEASE_NAMESPACE, "tidewheel-sre-gateways")]
    tidewheel.kubectl("create", "serviceaccount", _SRE)
    for namespace, role in bindings:
        account = f"--serviceaccount={SERVING_NAMESPACE}:{_SRE}"
        tidewheel.kubectl("create", "rolebinding", _SRE, f"--role={role}", account, namespace=namespace)
    token = tidewheel.kubectl("create", "token", _SRE).strip()
    yield _with_token(token, tidewheel.cluster.kubeconfig, tmp_path / "sre")
    tidewheel.kubectl("delete", "serviceaccount", _SRE)
    for namespace, _ in bindings:
        tidewheel.kubectl("delete", "rolebinding", _SRE, namespace=namespace)


def _with_token(token: str, admin: Path, path: Path) -> Path:
    """The admin's kubeconfig with another identity."""
    config = yaml.safe_load(admin.read_text())
    for entry in config["users"]:
        entry["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path


def _roll_back(model: Model, kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [_PLUGIN, model.name, "-n", SERVING_NAMESPACE, "--kubeconfig", kubeconfig, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ})


async def _serve_canary(tidewheel: Installation, model: Model, split: Mapping[str, int]) -> None:
    """v1 alone, then the split; v2 differs in what it runs, else nothing could be wrong with it alone."""
    tidewheel.apply(model.version("v1"), model.version("v2", arguments=["--max-waiting", "999"]))
    tidewheel.apply(model.rule({"v1": 100}))
    await tidewheel.has_split(model, {"v1": 100})
    tidewheel.apply(model.rule(split))
    await tidewheel.has_split(model, split)


class _Observer:
    """The RoutingTable as Kubernetes' own client sees it, so that no bug of our client can hide itself."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = official.CustomObjectsApi(official_config.new_client_from_config(str(kubeconfig)))

    def table(self, model: Model) -> dict[str, Any]:
        found: dict[str, Any] = self._api.get_namespaced_custom_object(
            "tidewheel.dev", "v1alpha1", SERVING_NAMESPACE, "routingtables", model.name
        )
        return found


async def test_an_sre_rolls_back_under_load_with_the_operator_stopped(tidewheel: Installation, sre: Path) -> None:
    model = Model("rolled", reply_tokens=8)
    await _serve_canary(tidewheel, model, {"v1": 50, "v2": 50})
    observer = _Observer(tidewheel.cluster.kubeconfig)
    tidewheel.kubectl("scale", "deployment/tidewheel-operator", "--replicas=0", namespace=RELEASE_NAMESPACE)
    try:
        async with steady_load(tidewheel.gateway_url, model.name) as load:
            await eventually(lambda: {"v1", "v2"} <= set(load.versions), within_seconds=60, what="both versions answer")
            before = observer.table(model)["metadata"]["generation"]
            done = _roll_back(model, sre, "-o", "json", "--reason", "errors doubled")
            assert done.returncode == 0, done.stdout + done.stderr
            answered = len(load.streams)
            await eventually(lambda: len(load.streams) > answered + 40, within_seconds=60, what="load goes on")
            late = load.streams[answered + 8 :]  # those under way at that moment may still be v2's
        said = json.loads(done.stdout)
        assert load.problems == []
        assert {stream.version for stream in late} == {"v1"}
        assert said["actor"] == _ACTOR
        assert len(said["gateways"]) == 2
        assert all(gateway["ms"] is not None for gateway in said["gateways"])
        table = observer.table(model)
        assert table["metadata"]["generation"] == said["generation"] == before + 1
        assert [entry["version"] for entry in table["spec"]["rejected"]] == ["v2"]
        events = tidewheel.get("events", "--field-selector=reason=Rollback")["items"]
        assert any(f"{_ACTOR} rolled back" in event["message"] for event in events)
    finally:
        tidewheel.kubectl("scale", "deployment/tidewheel-operator", "--replicas=2", namespace=RELEASE_NAMESPACE)
    # The operator comes back to a rule that still says 50/50, and leaves the split as the person set it.
    await eventually(
        lambda: tidewheel.condition("routingrule", model.name, "Degraded").get("reason") == "VersionRejected",
        within_seconds=60,
        every=0.5,
        what="the rule says that its version was rejected",
    )
    assert observer.table(model)["metadata"]["generation"] == said["generation"]


async def test_a_gateway_that_does_not_answer_is_named_and_the_rollback_stands(
    tidewheel: Installation, sre: Path
) -> None:
    model = Model("unconfirmed")
    await _serve_canary(tidewheel, model, {"v1": 90, "v2": 10})
    labels = {"app.kubernetes.io/name": "tidewheel", "app.kubernetes.io/component": "gateway"}
    container = {"name": "main", "image": "tidewheel-gateway:dev", "command": ["sleep", "600"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "deaf-gateway", "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    tidewheel.kubectl("apply", "--filename=-", stdin=json.dumps(pod), namespace=RELEASE_NAMESPACE)
    try:
        tidewheel.kubectl(
            "wait", "--for=jsonpath={.status.phase}=Running", "pod/deaf-gateway", "--timeout=60s",
            namespace=RELEASE_NAMESPACE,
        )  # fmt: skip
        done = _roll_back(model, sre, "--timeout", "2")
    finally:
        tidewheel.kubectl("delete", "pod", "deaf-gateway", "--wait=false", namespace=RELEASE_NAMESPACE)
    assert done.returncode == 3
    assert "2 of 3 gateways obey" in done.stdout
    assert "deaf-gateway has not confirmed" in done.stdout
    assert tidewheel.weights(model) == {"v1": 10_000}


_ALLOWED = [
    ("get", "routingtables", SERVING_NAMESPACE),
    ("list", "routingtables", SERVING_NAMESPACE),
    ("patch", "routingtables", SERVING_NAMESPACE),
    ("create", "events", SERVING_NAMESPACE),
    ("get", "pods", RELEASE_NAMESPACE),
    ("list", "pods", RELEASE_NAMESPACE),
    ("get", "pods/proxy", RELEASE_NAMESPACE),
]
_DENIED = [
    ("create", "routingtables", SERVING_NAMESPACE),
    ("delete", "routingtables", SERVING_NAMESPACE),
    ("watch", "routingtables", SERVING_NAMESPACE),
    ("patch", "routingrules", SERVING_NAMESPACE),
    ("patch", "modelversions", SERVING_NAMESPACE),
    ("patch", "modelversions/scale", SERVING_NAMESPACE),
    ("get", "pods", SERVING_NAMESPACE),
    ("get", "pods/proxy", SERVING_NAMESPACE),
    ("get", "secrets", SERVING_NAMESPACE),
    ("get", "secrets", RELEASE_NAMESPACE),
    ("create", "pods/proxy", RELEASE_NAMESPACE),
    ("create", "pods/exec", RELEASE_NAMESPACE),
    ("delete", "pods", RELEASE_NAMESPACE),
    ("get", "pods/log", RELEASE_NAMESPACE),
    ("patch", "routingtables", "default"),
    ("get", "nodes", ""),
]


def test_an_sre_can_do_that_and_nothing_else(tidewheel: Installation, sre: Path) -> None:
    authorization = official.AuthorizationV1Api(official_config.new_client_from_config(str(sre)))
    groups = {"routingtables", "routingrules", "modelversions", "modelversions/scale"}

    def allowed(verb: str, resource: str, namespace: str) -> bool:
        name, _, subresource = resource.partition("/")
        attributes = official.V1ResourceAttributes(
            group="tidewheel.dev" if resource in groups else "",
            resource=name,
            subresource=subresource or None,
            verb=verb,
            namespace=namespace or None,
        )
        review = official.V1SelfSubjectAccessReview(
            spec=official.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        )
        return bool(authorization.create_self_subject_access_review(review).status.allowed)

    assert [entry for entry in _ALLOWED if not allowed(*entry)] == []
    assert [entry for entry in _DENIED if allowed(*entry)] == []
