"""`tidewheel watch|why|pause|resume|promote|retry|replay` as installed, against a real API server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.rollback_tables import rejection, split
from tests.cli.rollback_tables import table as routing_table
from tests.cli.rollout_objects import finished, rollout
from tests.faults.api_calls import calls
from tests.faults.api_faults import LoseAnswer, Refuse
from tests.faults.api_proxy import ApiProxy

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.access import load_access

pytestmark = pytest.mark.component

CRDS = Path(__file__).parents[2] / "crds"
AT = "2026-01-01T00:00:00Z"


class Shop:
    """A namespace with the model `chat`, and the commands run against it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace, self.kubeconfig = plane, namespace, plane.kubeconfig

    def write(self, progress: dict[str, Any], *, weights: dict[str, int], **fields: Any) -> None:
        """Rule with this status, and table, as the operator leaves them."""
        metadata = {"name": "chat", "namespace": self.namespace}
        traffic = [{"version": "v42", "percent": 0}, {"version": "v43", "percent": 100}]
        rule = {
            "apiVersion": "tidewheel.dev/v1alpha1",
            "kind": "RoutingRule",
            "metadata": metadata,
            "spec": {"model": "chat", "traffic": traffic},
        }
        cause = {"actor": "tidewheel-operator", "reason": "StepStarted", "at": AT, "rolloutId": "r7", "step": 3}
        table = {**routing_table(split(**weights), cause=cause, **fields), "metadata": metadata}
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(rule))
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(table))
        status = {"observedGeneration": self.read("routingrule")["metadata"]["generation"], "rollout": progress}
        patch = json.dumps({"status": status})
        self.plane.kubectl(
            "patch", "routingrule", "chat", "-n", self.namespace, "--subresource=status", "--type=merge", "-p", patch
        )

    def read(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.plane.kubectl("get", kind, "chat", "-n", self.namespace, "-o", "json"))
        return found

    def tidewheel(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        program = Path(sys.executable).with_name("tidewheel")
        command = [program, *arguments, "-n", self.namespace, "--kubeconfig", self.kubeconfig]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def served(control_plane: ControlPlane) -> ControlPlane:
    for path in sorted(CRDS.glob("*.yaml")):
        control_plane.kubectl("apply", "--server-side", "-f", str(path))
    for kind in ("routingrules", "routingtables"):
        control_plane.kubectl("wait", "--for=condition=Established", f"crd/{kind}.tidewheel.dev", "--timeout=30s")
    return control_plane


@pytest.fixture
def shop(served: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Shop]:
    namespace = f"steer-{abs(hash(request.node.nodeid)) % 10**8}"
    served.kubectl("create", "namespace", namespace)
    yield Shop(served, namespace)
    served.kubectl("delete", "namespace", namespace, "--wait=false")


MIDWAY = {"v42": 7500, "v43": 2500}


def running(**fields: Any) -> dict[str, Any]:
    return {**rollout(**fields), "history": [], "startedAt": AT}


def test_a_rollout_is_paused_promoted_and_read_back_by_name(shop: Shop) -> None:
    shop.write(running(), weights=MIDWAY)
    done = shop.tidewheel("pause", "chat")
    assert done.returncode == 0, done.stderr
    assert "rollout r7 is paused at step 3" in done.stdout
    control = shop.read("routingtable")["spec"]["control"]
    assert (control["rolloutId"], control["paused"]) == ("r7", True)
    assert control["actor"]

    watched = shop.tidewheel("watch", "chat")
    assert watched.returncode == 4, "it waits for a person"
    assert "verdict SUSPECT" in watched.stdout

    again = shop.tidewheel("pause", "chat")
    assert (again.returncode, "paused already" in again.stdout) == (0, True)
    assert shop.tidewheel("promote", "chat", "--next").returncode == 0
    control = shop.read("routingtable")["spec"]["control"]
    assert (control["paused"], control["promoteStep"]) == (False, 4)


def test_why_and_watch_tell_the_numbers(shop: Shop) -> None:
    shop.write(running(), weights=MIDWAY)
    why = shop.tidewheel("why", "chat")
    assert why.returncode == 0, why.stderr
    assert "errors canary 9/6120" in why.stdout
    assert "evidence 310:1 of 2,400:1" in why.stdout
    once = shop.tidewheel("watch", "chat", "--once", "-o", "json")
    assert once.returncode == 3
    said = json.loads(once.stdout)
    assert (said["verdict"], said["step"], said["exitStatus"]) == ("SUSPECT", 3, 3)
    assert shop.tidewheel("watch", "chat", "--timeout", "0.5", "--every", "0.2").returncode == 3


def test_a_rejected_version_is_retried_and_a_watch_of_it_fails(shop: Shop) -> None:
    shop.write({**finished("Rejected"), "history": []}, weights={"v42": 10_000}, rejected=[rejection("v43")])
    assert shop.tidewheel("watch", "chat").returncode == 1
    assert "retry" in shop.tidewheel("why", "chat").stdout
    assert shop.tidewheel("retry", "chat").returncode == 0
    assert shop.read("routingtable")["spec"]["control"]["retryDigest"] == "sha256:v43"


def test_a_promoted_rollout_ends_the_watch_well(shop: Shop) -> None:
    shop.write({**finished("Promoted"), "history": []}, weights={"v43": 10_000})
    assert shop.tidewheel("watch", "chat").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        pytest.param(["pause", "chat", "--rollout", "r6"], 1, "r6 is over", id="C04: another rollout"),
        pytest.param(["pause", "caht"], 1, "RoutingRules there: chat", id="another model"),
        pytest.param(["why", "caht"], 1, "neither a RoutingRule nor a ModelVersion", id="why of nothing"),
        pytest.param(["promote", "chat", "--next", "--step", "4"], 2, "exclude each other", id="wrong arguments"),
        pytest.param(["replay", "--model", "chat"], 1, "no ConfigMap chat-rollout-ledger", id="no ledger"),
    ],
)
def test_a_refusal_is_one_sentence_and_writes_nothing(
    shop: Shop, arguments: list[str], status: int, words: str
) -> None:
    shop.write(running(), weights=MIDWAY)
    done = shop.tidewheel(*arguments)
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr
    assert "control" not in shop.read("routingtable")["spec"]


@pytest.mark.parametrize(
    "effect",
    [
        pytest.param(LoseAnswer(), id="the answer was lost"),
        pytest.param(Refuse(503, "ServiceUnavailable"), id="busy"),
        pytest.param(Refuse(409, "Conflict"), id="somebody wrote meanwhile"),
    ],
)
def test_one_hiccup_costs_nothing_and_is_written_once(shop: Shop, tmp_path: Path, effect: Any) -> None:
    shop.write(running(), weights=MIDWAY)
    with ApiProxy(load_access(kubeconfig=shop.kubeconfig)) as proxy:
        shop.kubeconfig = proxy.write_kubeconfig(tmp_path / "proxied")
        proxy.inject(calls("patch", resource="routingtables"), effect)
        done = shop.tidewheel("pause", "chat")
    assert done.returncode == 0, done.stderr
    stored = shop.read("routingtable")
    assert stored["spec"]["control"]["paused"] is True
    assert stored["metadata"]["generation"] == 2
