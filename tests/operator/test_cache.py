"""The cache: late, doubled, reordered and missing reports end in the newest truth."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.builders import KEY, NOW, pod, rule, service, table, version

from tidewheel.clients.resources import MODEL_VERSIONS, PODS, ROUTING_RULES, ROUTING_TABLES, SERVICES
from tidewheel.operator.planning.records import ModelKey, PodRecord
from tidewheel.operator.watching.cache import Cache

V1 = version("v1")


@pytest.fixture
def changes() -> list[ModelKey]:
    return []


@pytest.fixture
def cache(changes: list[ModelKey]) -> Cache:
    return Cache(changes.append)


def at(of: PodRecord, resource_version: int, **changes: Any) -> PodRecord:
    return replace(of, meta=replace(of.meta, resource_version=str(resource_version)), **changes)


def names(cache: Cache) -> list[str]:
    return [each.meta.name for each in cache.picture(KEY, now=NOW, loads={}).pods]


def test_everything_about_a_model_is_in_its_picture(cache: Cache) -> None:
    cache.observe(MODEL_VERSIONS, V1)
    cache.observe(ROUTING_RULES, rule(v1=100))
    cache.observe(ROUTING_TABLES, table({"v1": V1}, v1=10_000))
    cache.observe(PODS, pod(V1))
    cache.observe(SERVICES, service(V1))
    picture = cache.picture(KEY, now=NOW, loads={})
    assert set(picture.versions) == {"v1"}
    assert picture.rule is not None
    assert picture.table is not None
    assert len(picture.pods) == 1
    assert set(picture.services) == {"v1"}
    assert cache.picture(ModelKey("other", "chat"), now=NOW, loads={}).versions == {}


def test_a_list_that_is_replayed_changes_nothing(cache: Cache, changes: list[ModelKey]) -> None:
    cache.observe(PODS, at(pod(V1), 5))
    assert changes == [KEY]
    for _ in range(3):
        cache.observe(PODS, at(pod(V1), 5))
    assert changes == [KEY]


def test_an_older_report_never_replaces_a_newer_one(cache: Cache) -> None:
    cache.observe(PODS, at(pod(V1), 7))
    cache.observe(PODS, at(pod(V1, state="loading"), 6))
    assert cache.picture(KEY, now=NOW, loads={}).pods[0].ready


def test_a_late_report_does_not_bring_a_deleted_object_back(cache: Cache) -> None:
    cache.observe(PODS, at(pod(V1), 5))
    cache.observe_deleted(PODS, at(pod(V1), 8))
    cache.observe(PODS, at(pod(V1), 6))
    assert names(cache) == []


def test_the_deletion_of_a_predecessor_does_not_remove_its_successor(cache: Cache) -> None:
    old = at(pod(V1), 5)
    new = replace(old, meta=replace(old.meta, uid="uid-new", resource_version="9"))
    cache.observe(PODS, new)
    cache.observe_deleted(PODS, at(old, 8))
    assert names(cache) == ["chat-v1-0-0"]


def test_a_list_removes_what_it_lacks_and_says_how_many_were_missed(cache: Cache, changes: list[ModelKey]) -> None:
    """kopf (measured): objects deleted before a re-list are never reported."""
    cache.observe(PODS, at(pod(V1, 0), 5))
    cache.observe(PODS, at(pod(V1, 1), 6))
    changes.clear()
    assert cache.replace(PODS, None, [at(pod(V1, 1), 6)], "20") == 1
    assert names(cache) == ["chat-v1-1-0"]
    assert changes == [KEY]


def test_a_list_does_not_remove_what_was_created_after_it(cache: Cache) -> None:
    cache.observe(PODS, at(pod(V1), 30))
    cache.replace(PODS, None, [], "20")
    cache.replace(PODS, "another-namespace", [], "90")
    assert names(cache) == []  # the list at 20 is older than what is known: a restore; see below


def test_a_list_from_before_what_is_known_means_a_restore_and_is_the_truth(cache: Cache) -> None:
    cache.observe(PODS, at(pod(V1, 0), 500))
    cache.observe_deleted(PODS, at(pod(V1, 1), 501))
    cache.replace(PODS, None, [at(pod(V1, 1), 90)], "100")
    assert names(cache) == ["chat-v1-1-0"]
    cache.observe(PODS, at(pod(V1, 1, state="loading"), 101))
    assert not cache.picture(KEY, now=NOW, loads={}).pods[0].ready


def test_a_list_of_one_namespace_leaves_the_others_alone(cache: Cache) -> None:
    cache.observe(PODS, at(pod(V1), 5))
    cache.replace(PODS, "another-namespace", [], "20")
    assert names(cache) == ["chat-v1-0-0"]


def test_an_own_write_is_seen_at_once_and_the_watch_s_report_of_it_is_no_change(
    cache: Cache, changes: list[ModelKey]
) -> None:
    created = at(pod(V1, state="new"), 11)
    cache.observe(PODS, created)
    changes.clear()
    cache.observe(PODS, created)
    assert changes == []
    assert names(cache) == ["chat-v1-0-0"]


@given(st.permutations(range(6)), st.data())
def test_in_whatever_order_reports_come_the_end_is_the_same(order: list[int], data: st.DataObject) -> None:
    cache = Cache(lambda key: None)
    history = [at(pod(V1, since=number), number + 1) for number in range(5)]
    for number in order:
        for _ in range(data.draw(st.integers(1, 2))):
            if number < 5:
                cache.observe(PODS, history[number])
            else:
                cache.observe_deleted(PODS, at(pod(V1), 6))
    assert names(cache) == []
