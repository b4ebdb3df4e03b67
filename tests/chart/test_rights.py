"""Who may do what: read from the rendered Roles."""

from typing import Any

import yaml
from tests.chart.rendering import CHART, NAMESPACE, Helm, select

Rules = set[tuple[str, str, str]]
SUBJECT = '--set-json=sre.subjects=[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"ada"}]'


def grants(role: dict[str, Any]) -> Rules:
    """(group, resource, verb), flat."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_nobody_gets_wildcards_secrets_or_a_shell(rendered: list[dict[str, Any]]) -> None:
    roles = [*select(rendered, "Role"), *select(rendered, "ClusterRole")]
    assert roles
    for role in roles:
        for group, resource, verb in grants(role):
            name = role["metadata"]["name"]
            assert "*" not in (group, resource, verb), name
            assert resource not in {"secrets", "pods/exec", "pods/attach", "serviceaccounts/token"}, name
            assert verb not in {"escalate", "bind", "impersonate"}, name


def test_the_operator_may_do_what_it_says_it_needs(rendered: list[dict[str, Any]]) -> None:
    needed = yaml.safe_load((CHART.parents[1] / "operator/tidewheel/operator/rbac.yaml").read_text())
    (serving,) = select(rendered, "Role", "tidewheel-operator")
    (own,) = select(rendered, "Role", "tidewheel-operator-lease")
    assert (serving["rules"], serving["metadata"]["namespace"]) == (needed["serving"], "default")
    assert (own["rules"], own["metadata"]["namespace"]) == (needed["own"], NAMESPACE)


def test_a_gateway_reads_tables_and_endpoints_only(rendered: list[dict[str, Any]]) -> None:
    (role,) = select(rendered, "Role", "tidewheel-gateway")
    reads = {"get", "list", "watch"}
    assert grants(role) == {("tidewheel.dev", "routingtables", verb) for verb in reads} | {
        ("discovery.k8s.io", "endpointslices", verb) for verb in reads
    }


def test_an_sre_rolls_back_steers_rollouts_asks_the_gateways_and_nothing_else(helm: Helm) -> None:
    objects = helm.render(SUBJECT)
    roles = [role for role in select(objects, "Role") if role["metadata"]["name"].startswith("tidewheel-sre")]
    granted = {(role["metadata"]["namespace"], *grant) for role in roles for grant in grants(role)}
    assert granted == {
        *(("default", "tidewheel.dev", "routingtables", verb) for verb in ("get", "list", "patch")),
        *(
            ("default", "tidewheel.dev", kind, verb)
            for kind in ("modelversions", "routingrules")
            for verb in ("get", "list")
        ),
        ("default", "", "events", "create"),
        (NAMESPACE, "", "pods", "get"),
        (NAMESPACE, "", "pods", "list"),
        (NAMESPACE, "", "pods/proxy", "get"),
    }
    bound = [b for b in select(objects, "RoleBinding") if b["metadata"]["name"].startswith("tidewheel-sre")]
    assert len(bound) == 2
    assert all(subject["name"] == "ada" for binding in bound for subject in binding["subjects"])


def test_nobody_is_an_sre_unless_named(rendered: list[dict[str, Any]]) -> None:
    assert not [b for b in select(rendered, "RoleBinding") if b["metadata"]["name"].startswith("tidewheel-sre")]
