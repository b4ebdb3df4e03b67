"""What to believe of what the API server says."""

from typing import Any

import pytest
from tests.gateway.programs import table

from tidewheel.gateway.catalog import Catalog, Verdict
from tidewheel.gateway.snapshot import Endpoint, ModelKey, SnapshotError, VersionKey, parse_snapshot

NOW = "2026-01-01T00:00:00Z"
CHAT, V1 = ModelKey("default", "chat"), VersionKey("default", "chat", "v1")


def generation(catalog: Catalog) -> int | None:
    held = catalog.snapshot().tables.get(CHAT)
    return held.generation if held else None


def put(catalog: Catalog, number: int, *, uid: str = "a", confirmed: bool = False) -> Verdict:
    body = table(weights={"v1": 10_000}, generation=number, uid=uid)
    return catalog.put_table(body, observed_at=NOW, confirmed=confirmed)


def endpoint_slice(
    *endpoints: dict[str, Any], name: str = "chat-v1-x", version: str = "v1", **body: Any
) -> dict[str, Any]:
    """An EndpointSlice of a version's headless Service."""
    labels = {"tidewheel.dev/model": "chat", "tidewheel.dev/version": version, "tidewheel.dev/uid": "u"}
    return {
        "metadata": {"namespace": "default", "name": name, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": 1}, {"name": "http", "port": 8000}],
        "endpoints": list(endpoints),
        **body,
    }


def pod(uid: str, address: str, **conditions: bool) -> dict[str, Any]:
    """One endpoint."""
    return {"addresses": [address], "targetRef": {"kind": "Pod", "uid": uid}, "conditions": conditions}


def test_a_lower_generation_of_the_same_uid_waits_for_a_fresh_read() -> None:
    catalog = Catalog()
    assert put(catalog, 7) is Verdict.TAKEN
    assert put(catalog, 7) is Verdict.UNCHANGED
    assert put(catalog, 5) is Verdict.LOWER
    assert (generation(catalog), catalog.regressions) == (7, 0)
    assert put(catalog, 5, confirmed=True) is Verdict.TAKEN
    assert (generation(catalog), catalog.regressions) == (5, 1)
    assert put(catalog, 6) is Verdict.TAKEN
    assert (generation(catalog), catalog.regressions) == (6, 1)


def test_a_table_created_anew_starts_at_any_generation() -> None:
    catalog = Catalog()
    put(catalog, 7)
    assert put(catalog, 1, uid="b") is Verdict.TAKEN
    assert (generation(catalog), catalog.regressions) == (1, 0)


def test_a_table_that_is_not_valid_leaves_the_last_good_one_in_force() -> None:
    catalog = Catalog()
    put(catalog, 1)
    bad = table(weights={"v1": 9_000, "v2": 500}, generation=2, uid="a")
    with pytest.raises(SnapshotError, match="sum to 9500 of 10000"):
        catalog.put_table(bad, observed_at=NOW)
    assert generation(catalog) == 1


def test_a_deleted_table_is_gone() -> None:
    catalog = Catalog()
    put(catalog, 1)
    catalog.drop_table(CHAT)
    assert generation(catalog) is None


def test_replicas_are_known_by_pod_uid_with_their_conditions() -> None:
    """sglang#30270; the API's rule is that an absent condition means ready."""
    catalog = Catalog()
    catalog.put_slice(
        endpoint_slice(
            pod("a", "10.0.0.1", ready=True),
            pod("b", "10.0.0.2", ready=False, serving=True, terminating=True),
            {"addresses": ["10.0.0.3"]},
            {"addresses": []},
        )
    )
    assert catalog.snapshot().endpoints == {
        V1: (
            Endpoint("a", "10.0.0.1", 8000),
            Endpoint("b", "10.0.0.2", 8000, ready=False, terminating=True),
            Endpoint("10.0.0.3:8000", "10.0.0.3", 8000),
        )
    }
    catalog.put_slice(endpoint_slice(pod("a", "10.0.0.9", ready=True)))
    assert catalog.snapshot().endpoints == {V1: (Endpoint("a", "10.0.0.9", 8000),)}
    catalog.drop_slice(("default", "chat-v1-x"))
    assert catalog.snapshot().endpoints == {}


def test_slices_of_one_version_are_one_set() -> None:
    catalog = Catalog()
    catalog.put_slice(endpoint_slice(pod("a", "10.0.0.1", ready=True), name="one"))
    catalog.put_slice(endpoint_slice(pod("a", "10.0.0.1", ready=False), pod("b", "10.0.0.2", ready=True), name="two"))
    assert catalog.snapshot().endpoints[V1] == (Endpoint("a", "10.0.0.1", 8000), Endpoint("b", "10.0.0.2", 8000))


@pytest.mark.parametrize(
    "change",
    [
        {"addressType": "FQDN"},
        {"ports": [{"name": "metrics", "port": 1}]},
        {"ports": None},
        {"endpoints": None},
        {"metadata": {"namespace": "default", "name": "chat-v1-x"}},
    ],
    ids=["names", "no http port", "no ports", "no endpoints", "no labels"],
)
def test_slices_without_what_we_need_give_no_replicas(change: dict[str, Any]) -> None:
    catalog = Catalog()
    catalog.put_slice(endpoint_slice(pod("a", "10.0.0.1")))
    catalog.put_slice({**endpoint_slice(pod("a", "10.0.0.1")), **change})
    assert not any(catalog.snapshot().endpoints.values())


def test_what_is_remembered_counts_until_the_first_list_of_its_kind() -> None:
    remembered = {
        "tables": [table(weights={"v1": 10_000}, generation=3), table("mini", weights={"v1": 10_000}, uid="m")],
        "endpoints": {"default/chat/v1": ["10.0.0.1:8000"], "default/mini/v1": ["10.0.0.2:8000"]},
    }
    catalog = Catalog()
    catalog.remember(parse_snapshot(remembered, observed_at=NOW), saved_at=NOW)
    assert catalog.snapshot().stale_since == NOW
    assert len(catalog.snapshot().tables) == len(catalog.snapshot().endpoints) == 2
    put(catalog, 3, uid="table-uid")
    catalog.put_slice(endpoint_slice(pod("p", "10.0.0.7")))
    assert catalog.snapshot().endpoints[V1] == (Endpoint("p", "10.0.0.7", 8000),)
    catalog.tables_listed("default")
    assert set(catalog.snapshot().tables) == {CHAT}
    assert len(catalog.snapshot().endpoints) == 2
    catalog.slices_listed("default")
    catalog.all_listed()
    assert set(catalog.snapshot().endpoints) == {V1}
    assert catalog.snapshot().stale_since is None


def test_a_lower_generation_than_the_remembered_one_waits_too() -> None:
    catalog = Catalog()
    body = {"tables": [table(weights={"v1": 10_000}, generation=9)]}
    catalog.remember(parse_snapshot(body, observed_at=NOW), saved_at=NOW)
    assert put(catalog, 4, uid="table-uid") is Verdict.LOWER
    catalog.tables_listed("default")
    assert generation(catalog) == 9


def test_the_json_form_loses_nothing() -> None:
    catalog = Catalog()
    catalog.put_table(table(weights={"v1": 9_000, "v2": 1_000}, generation=2, rejected=[]), observed_at=NOW)
    catalog.put_slice(endpoint_slice(pod("a", "10.0.0.1", ready=False, terminating=True)))
    snapshot = catalog.snapshot()
    again = parse_snapshot(snapshot.to_json(), observed_at="2027-01-01T00:00:00Z")
    assert again == snapshot
    assert parse_snapshot(snapshot.to_json(), observed_at=NOW, known=snapshot).tables[CHAT] is snapshot.tables[CHAT]
