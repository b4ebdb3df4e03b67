"""`kubectl-rollback` as it is installed, against a real API server."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.rollback_tables import digest, rejection, split, table, warm
from tests.faults.api_calls import calls
from tests.faults.api_faults import Cut, Effect, LoseAnswer, Refuse, Say
from tests.faults.api_proxy import ApiProxy

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.cli.rollback import execution
from tidewheel.cli.rollback.command import parse
from tidewheel.cli.rollback.plan import RollbackPlan, plan_rollback
from tidewheel.clients.access import load_access

pytestmark = pytest.mark.component

CRDS = Path(__file__).parents[2] / "crds"
SRE_RULES = [
    {"apiGroups": ["tidewheel.dev"], "resources": ["routingtables"], "verbs": ["get", "list", "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
]


class Shop:
    """A namespace with the table `chat`, and the plugin run against it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.kubeconfig = plane.kubeconfig

    def write(self, targets: list[dict[str, Any]], **fields: Any) -> None:
        cause = {"actor": "tidewheel-operator", "reason": "RuleApplied", "at": "2026-01-01T00:00:00Z"}
        body = table(targets, cause=cause, **fields)
        body["metadata"] = {"name": "chat", "namespace": self.namespace}
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def write_rule(self, rollout: dict[str, Any]) -> None:
        """The rule with the progress of a rollout, as the operator leaves it."""
        entry = {"version": rollout["canary"], "percent": 100}
        body = {
            "apiVersion": "tidewheel.dev/v1alpha1",
            "kind": "RoutingRule",
            "metadata": {"name": "chat", "namespace": self.namespace},
            "spec": {"model": "chat", "traffic": [entry]},
        }
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(body))
        progress = {**rollout, "canaryDigest": digest(rollout["canary"])}
        status = json.dumps({"status": {"rollout": progress}})
        self.plane.kubectl(
            "patch", "routingrule", "chat", "-n", self.namespace, "--subresource=status", "--type=merge", "-p", status
        )

    def read(self) -> dict[str, Any]:
        text = self.plane.kubectl("get", "routingtable", "chat", "-n", self.namespace, "-o", "json")
        found: dict[str, Any] = json.loads(text)
        return found

    def shares(self) -> dict[str, int]:
        return {target["version"]: target["weight"] for target in self.read()["spec"]["targets"]}

    def events(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(
            self.plane.kubectl("get", "events", "-n", self.namespace, "-o", "json")
        )["items"]
        return items

    def rollback(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        program = Path(sys.executable).with_name("kubectl-rollback")
        command = [program, "chat", "-n", self.namespace, "--kubeconfig", self.kubeconfig, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def served(control_plane: ControlPlane) -> ControlPlane:
    for path in sorted(CRDS.glob("*.yaml")):
        control_plane.kubectl("apply", "-f", str(path))
    control_plane.kubectl("wait", "--for=condition=Established", "crd/routingtables.tidewheel.dev", "--timeout=30s")
    return control_plane


@pytest.fixture
def shop(served: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Shop]:
    namespace = f"rollback-{abs(hash(request.node.nodeid)) % 10**8}"
    served.kubectl("create", "namespace", namespace)
    yield Shop(served, namespace)
    served.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_canary_goes_back_and_everything_is_said(shop: Shop) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    done = shop.rollback("--reason", "TTFT doubled", "--timeout", "0")
    assert done.returncode == 0, done.stderr
    assert "rolled back from v1:90% v2:10% to v1:100%: TTFT doubled" in done.stdout
    stored = shop.read()
    assert shop.shares() == {"v1": 10_000}
    assert stored["metadata"]["generation"] == 2
    assert [entry["version"] for entry in stored["spec"]["rejected"]] == ["v2"]
    assert stored["spec"]["cause"]["reason"] == "Rollback"
    assert stored["spec"]["ruleGeneration"] == 7
    event = shop.events()[0]
    assert (event["reason"], event["type"]) == ("Rollback", "Warning")
    assert event["involvedObject"]["uid"] == stored["metadata"]["uid"]
    assert "TTFT doubled" in event["message"]


WAITING = {"id": "r7", "phase": "WaitingForCapacity", "from": {"v1": 10_000}, "to": {"v2": 10_000}, "canary": "v2"}


def test_before_its_first_weight_a_rollout_is_ended_and_the_split_in_force_stays(shop: Shop) -> None:
    """The table's previous split is then the one before that in force, and nobody asked for it."""
    shop.write(split(v1=10_000), previous=split(v0=10_000), keepWarm=[warm("v0", until="2126-01-01T00:00:00Z")])
    shop.write_rule(WAITING)
    done = shop.rollback("--reason", "not today", "--timeout", "0")
    assert done.returncode == 0, done.stderr
    assert "rolled back before v2 got traffic; v1:100% stays: not today" in done.stdout
    assert shop.shares() == {"v1": 10_000}
    stored = shop.read()
    assert [(entry["version"], entry["digest"]) for entry in stored["spec"]["rejected"]] == [("v2", digest("v2"))]
    assert [target["version"] for target in stored["spec"]["previous"]] == ["v0"]
    again = shop.rollback("--timeout", "0")
    assert "nothing to do" in again.stdout
    assert shop.read() == stored


def test_a_rule_that_cannot_be_read_keeps_nobody_from_going_back(shop: Shop, proxied: ApiProxy) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    proxied.inject(calls("get", resource="routingrules"), Refuse(503, "ServiceUnavailable"), times=None)
    done = shop.rollback("--timeout", "0")
    assert done.returncode == 0, done.stderr
    assert shop.shares() == {"v1": 10_000}


def test_typed_again_it_writes_nothing(shop: Shop) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    shop.rollback("--timeout", "0")
    before = shop.read()
    again = shop.rollback("--timeout", "0")
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    assert shop.read() == before


def test_a_dry_run_writes_nothing(shop: Shop) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    done = shop.rollback("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "nothing was written" in done.stdout
    assert shop.shares() == {"v1": 9000, "v2": 1000}
    assert shop.events() == []


def test_json_for_scripts(shop: Shop) -> None:
    shop.write(split(v2=10_000), previous=split(v1=10_000), keepWarm=[warm("v1", until="2126-01-01T00:00:00Z")])
    done = shop.rollback("-o", "json", "--timeout", "0")
    said = json.loads(done.stdout)
    assert said["changed"] is True
    assert said["to"] == [{"version": "v1", "weight": 10_000}]
    assert said["rejected"] == ["v2"]
    assert said["generation"] == shop.read()["metadata"]["generation"]


def test_without_gateways_the_write_stands_and_the_exit_status_says_unconfirmed(shop: Shop) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    done = shop.rollback("--timeout", "1")
    assert done.returncode == 3
    assert "no gateways in tidewheel-system" in done.stdout
    assert shop.shares() == {"v1": 10_000}


@pytest.mark.parametrize(
    ("fields", "arguments", "words"),
    [
        pytest.param({}, [], "nothing to go back to", id="no previous split"),
        pytest.param(
            {"previous": split(v2=10_000), "rejected": [rejection("v2")]}, [], "--to v2`", id="only rejected ones"
        ),
        pytest.param({}, ["--to", "v9"], "v9 neither carries traffic", id="unknown version"),
    ],
)
def test_a_refusal_is_one_sentence_and_writes_nothing(
    shop: Shop, fields: dict[str, Any], arguments: list[str], words: str
) -> None:
    shop.write(split(v1=10_000), **fields)
    done = shop.rollback(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert shop.read()["metadata"]["generation"] == 1


def test_a_model_without_a_table_names_the_ones_there_are(shop: Shop) -> None:
    shop.write(split(v1=10_000))
    program = Path(sys.executable).with_name("kubectl-rollback")
    command = [program, "chta", "-n", shop.namespace, "--kubeconfig", shop.kubeconfig]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "There: chat." in done.stderr


def test_an_unreachable_api_server_is_named(shop: Shop, tmp_path: Path) -> None:
    config = yaml.safe_load(shop.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    shop.kubeconfig = tmp_path / "kubeconfig"
    shop.kubeconfig.write_text(yaml.safe_dump(config))
    done = shop.rollback()
    assert done.returncode == 1
    assert "https://127.0.0.1:1 cannot be asked" in done.stderr
    assert "Traceback" not in done.stderr


def test_somebody_elses_change_is_read_and_planned_upon_afresh(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator promotes to v3 between our read and our write: the way back is now to what it left."""
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    seen: list[str] = []

    def plan_while_others_write(read: dict[str, Any], **options: Any) -> RollbackPlan:
        seen.append(read["metadata"]["resourceVersion"])
        if len(seen) == 1:
            shop.write(split(v3=10_000), previous=split(v1=9000, v2=1000), keepWarm=[warm("v1"), warm("v2")])
        return plan_rollback(read, **options)

    monkeypatch.setattr(execution, "plan_rollback", plan_while_others_write)
    outcome = execution.execute(_options(shop), started=0.0)
    assert len(set(seen)) == 2
    assert shop.shares() == {"v1": 9000, "v2": 1000}
    assert list(outcome.plan.rejected) == ["v3"]


@pytest.fixture
def proxied(shop: Shop, tmp_path: Path) -> Iterator[ApiProxy]:
    """The shop, seen through a proxy that breaks what it is told to."""
    with ApiProxy(load_access(kubeconfig=shop.kubeconfig)) as proxy:
        shop.kubeconfig = proxy.write_kubeconfig(tmp_path / "proxied")
        yield proxy


@pytest.mark.parametrize(
    ("verb", "effect"),
    [
        pytest.param("patch", LoseAnswer(), id="the write was done and its answer lost"),
        pytest.param("patch", Cut(), id="the write never arrived"),
        pytest.param("patch", Refuse(503, "ServiceUnavailable"), id="the server was busy for the write"),
        pytest.param("get", Cut(), id="the connection of the read was cut"),
        pytest.param("get", Refuse(503, "ServiceUnavailable"), id="the server was busy for the read"),
        pytest.param("get", Refuse(429, "TooManyRequests", retry_after=1), id="too many requests"),
        pytest.param("get", Refuse(401, "Unauthorized"), id="the token was refused once"),
    ],
)
def test_one_hiccup_of_the_api_server_costs_nothing(shop: Shop, proxied: ApiProxy, verb: str, effect: Effect) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    proxied.inject(calls(verb, resource="routingtables"), effect)
    done = shop.rollback("--timeout", "0", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changed"] is True
    stored = shop.read()
    assert stored["metadata"]["generation"] == 2  # written once
    assert shop.shares() == {"v1": 10_000}


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        pytest.param(Refuse(503, "ServiceUnavailable"), "refused by the test's proxy", id="busy for good"),
        pytest.param(Say(b"<html>log in</html>"), "the answer is no object", id="a captive portal"),
    ],
)
def test_an_api_server_that_stays_away_is_told_in_one_sentence(
    shop: Shop, proxied: ApiProxy, effect: Effect, words: str
) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    proxied.inject(calls("get", resource="routingtables"), effect, times=None)
    done = shop.rollback("--timeout", "0")
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert shop.shares() == {"v1": 9000, "v2": 1000}


def test_gateways_that_cannot_be_listed_delay_no_rollback(shop: Shop, proxied: ApiProxy) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    proxied.inject(calls("list", resource="pods"), Refuse(403, "Forbidden", "no pods for you"), times=None)
    done = shop.rollback()
    assert done.returncode == 3
    assert "the gateways were not asked" in done.stdout
    assert shop.shares() == {"v1": 10_000}


def test_a_person_with_the_shipped_role_can_roll_back_and_leave_the_event(shop: Shop, tmp_path: Path) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    _bind(shop, "ada")
    shop.kubeconfig = shop.plane.kubeconfig_for("sre", user="ada", path=tmp_path / "sre")
    done = shop.rollback("-o", "json", "--timeout", "0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["actor"] == "ada"
    assert shop.read()["spec"]["cause"]["actor"] == "ada"
    assert [event["reason"] for event in shop.events()] == ["Rollback"]


def test_a_person_without_rights_is_told_which_role_to_ask_for(shop: Shop, tmp_path: Path) -> None:
    shop.write(split(v1=9000, v2=1000), previous=split(v1=10_000))
    shop.kubeconfig = shop.plane.kubeconfig_for("nobody", user="nobody", path=tmp_path / "nobody")
    done = shop.rollback()
    assert done.returncode == 1
    assert "tidewheel-sre" in done.stderr
    assert shop.shares() == {"v1": 9000, "v2": 1000}


def _options(shop: Shop) -> argparse.Namespace:
    return parse(["chat", "-n", shop.namespace, "--kubeconfig", str(shop.kubeconfig), "--timeout", "0"])


def _bind(shop: Shop, user: str) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": SRE_RULES}
    metadata = {"name": "tidewheel-sre", "namespace": shop.namespace}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tidewheel-sre"},
        "subjects": [{"kind": "User", "name": user}],
    }
    listed = {"apiVersion": "v1", "kind": "List", "items": [{**role, "metadata": metadata}, binding]}
    shop.plane.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
