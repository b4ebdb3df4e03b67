"""Paths of the API, read as RBAC reads them."""

import pytest
from tests.faults.api_calls import ALL_WRITES, WRITES, Match, calls, parse_call

CASES = [
    ("GET", "/api/v1/namespaces/n/pods/p", "get", "", "pods", "n", "p", ""),
    ("GET", "/api/v1/namespaces/n/pods", "list", "", "pods", "n", "", ""),
    ("GET", "/api/v1/pods", "list", "", "pods", "", "", ""),
    ("GET", "/api/v1/namespaces", "list", "", "namespaces", "", "", ""),
    ("GET", "/api/v1/namespaces/n", "get", "", "namespaces", "", "n", ""),
    ("PATCH", "/api/v1/namespaces/n/pods/p/status", "patch", "", "pods", "n", "p", "status"),
    ("GET", "/api/v1/namespaces/n/pods/p:9090/proxy/routing/a", "get", "", "pods", "n", "p:9090", "proxy/routing/a"),
    ("POST", "/api/v1/namespaces/n/events", "create", "", "events", "n", "", ""),
    ("DELETE", "/api/v1/namespaces/n/pods", "deletecollection", "", "pods", "n", "", ""),
    (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/n/leases/l",
        "update",
        "coordination.k8s.io",
        "leases",
        "n",
        "l",
        "",
    ),
    ("PATCH", "/apis/a.dev/v1/namespaces/n/things/t", "patch", "a.dev", "things", "n", "t", ""),
    ("PUT", "/api/v1/namespaces/n/finalize", "update", "", "namespaces", "", "n", "finalize"),
    ("GET", "/readyz", "get", "", "", "", "", ""),
]


@pytest.mark.parametrize(
    ("method", "path", *(["verb", "group", "resource", "namespace", "name", "subresource"])), CASES
)
def test_a_path_says_what_it_asks_for(
    method: str, path: str, verb: str, group: str, resource: str, namespace: str, name: str, subresource: str
) -> None:
    call = parse_call(method=method, path=path, watching=False, user_agent="", authorization="")
    assert (call.verb, call.group, call.resource) == (verb, group, resource)
    assert (call.namespace, call.name, call.subresource) == (namespace, name, subresource)


@pytest.mark.parametrize(
    ("method", "path", "match", "matches"),
    [
        ("POST", "/api/v1/namespaces/n/pods", WRITES, True),
        ("POST", "/api/v1/namespaces/n/events", WRITES, False),
        ("POST", "/api/v1/namespaces/n/events", ALL_WRITES, True),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", WRITES, False),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", ALL_WRITES, False),
        ("GET", "/api/v1/namespaces/n/pods", WRITES, False),
        ("GET", "/api/v1/namespaces/n/pods", calls("list", resource="pods"), True),
        ("GET", "/api/v1/namespaces/n/pods/p", calls("list", resource="pods"), False),
        ("PATCH", "/api/v1/namespaces/n/pods/p/status", Match(subresource="status"), True),
        ("PATCH", "/api/v1/namespaces/n/pods/p", Match(subresource="status"), False),
        ("GET", "/api/v1/pods", calls(user_agent="tidewheel"), True),
        ("GET", "/api/v1/pods", calls(user_agent="kubectl"), False),
    ],
)
def test_a_match_takes_what_it_names(method: str, path: str, match: Match, matches: bool) -> None:
    call = parse_call(method=method, path=path, watching=False, user_agent="tidewheel-operator", authorization="")
    assert match(call) is matches
