"""The chart on a real API server: installed, upgraded, removed."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chart.rendering import CHART, NAMESPACE, Helm, select

from tidewheel.cli.cluster.bare_control_plane import running_control_plane
from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.crds.names import ENGINE_TOKEN_SECRET

pytestmark = pytest.mark.component
VALUES = '--set-json=servingNamespaces=["default","shop"]'


class Release:
    """The release `tidewheel` on an API server of its own, with nobody behind it: pods are stored, none runs."""

    def __init__(self, helm: Helm, plane: ControlPlane) -> None:
        self.helm = helm
        self.plane = plane

    def run(self, command: str, *arguments: str, namespace: str = NAMESPACE) -> str:
        done = self.helm.run(
            command, "tidewheel", *arguments, "--namespace", namespace, "--kubeconfig", str(self.plane.kubeconfig)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def get(self, *what: str, namespace: str = NAMESPACE) -> Any:
        return json.loads(self.plane.kubectl("get", *what, "-n", namespace, "-o", "json"))

    def token(self, namespace: str = NAMESPACE) -> str:
        data = self.get("secret", ENGINE_TOKEN_SECRET, namespace=namespace)["data"]
        return base64.b64decode(data["token"]).decode()


@pytest.fixture(scope="module")
def release(helm: Helm) -> Iterator[Release]:
    with running_control_plane() as plane:
        plane.kubectl("create", "namespace", "shop")
        yield Release(helm, plane)


def test_a_server_side_dry_run_is_accepted_and_leaves_nothing(release: Release) -> None:
    said = release.run("install", str(CHART), "--create-namespace", "--dry-run=server", VALUES)
    assert "tidewheel-gateway" in said
    assert release.plane.kubectl("get", "crd", "-o", "name") == ""


def test_the_life_of_a_release(release: Release) -> None:
    """Install, upgrade with other values, uninstall, install again: the token and the CRDs survive it all."""
    notes = release.run("install", str(CHART), "--create-namespace", VALUES)
    assert "kubectl rollback chat" in notes
    token = release.token()
    assert len(token) == 48
    assert release.token("shop") == release.token("default") == token
    assert len(release.get("deployments")["items"]) == 2

    release.run("upgrade", str(CHART), VALUES, "--set=gateway.replicas=3")
    assert release.token() == token
    (gateway,) = select(release.get("deployments")["items"], "Deployment", "tidewheel-gateway")
    assert gateway["spec"]["replicas"] == 3

    release.plane.kubectl("apply", "-f", str(CHART.parents[1] / "examples/chat.yaml"))
    release.run("uninstall")
    assert release.get("deployments")["items"] == []
    assert release.get("modelversions", namespace="default")["items"][0]["metadata"]["name"] == "chat-v1"
    assert release.token("shop") == token

    release.run("install", str(CHART), VALUES)
    assert release.token("shop") == token


@pytest.mark.parametrize("program", ["gateway", "operator"])
def test_pods_are_let_into_a_namespace_that_enforces_the_restricted_standard(
    release: Release, rendered: list[dict[str, Any]], program: str, tmp_path: Path
) -> None:
    name = f"restricted-{program}"
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    release.plane.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    release.plane.kubectl("create", "serviceaccount", f"tidewheel-{program}", "-n", name)
    (deployment,) = select(rendered, "Deployment", f"tidewheel-{program}")
    template = deployment["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": program, "namespace": name},
        "spec": template["spec"],
    }
    release.plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


def test_the_examples_are_accepted_as_they_are(release: Release) -> None:
    release.run("upgrade", str(CHART), "--install", "--create-namespace", VALUES)
    for path in sorted((CHART.parents[1] / "examples").glob("*.yaml")):
        release.plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))
