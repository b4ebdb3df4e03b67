"""The client against a real API server."""

from contextlib import aclosing

import pytest
from tests.clients.configmaps import config_map, create

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from tidewheel.clients.kubernetes import (
    CONFIG_MAPS,
    NODES,
    PODS,
    SELF_SUBJECT_REVIEWS,
    Access,
    ClientSettings,
    KubeClient,
    Resource,
    load_access,
)

pytestmark = pytest.mark.component


async def test_an_object_lives_from_create_to_delete(client: KubeClient, namespace: str) -> None:
    created = await create(client, "a", namespace, k="1")
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"k": "1"}

    merged = await client.patch_merge(CONFIG_MAPS, "a", namespace, {"data": {"k": "2"}})
    assert merged["metadata"]["uid"] == created["metadata"]["uid"]
    operations = [{"op": "test", "path": "/data/k", "value": "2"}, {"op": "replace", "path": "/data/k", "value": "3"}]
    patched = await client.patch_json(CONFIG_MAPS, "a", namespace, operations)
    assert patched["data"] == {"k": "3"}
    replaced = await client.replace(CONFIG_MAPS, {**patched, "data": {"k": "4"}})
    assert replaced["data"] == {"k": "4"}

    await client.delete(CONFIG_MAPS, "a", namespace, uid=created["metadata"]["uid"])
    with pytest.raises(NotFound, match=r'GET .*configmaps/a: configmaps "a" not found'):
        await client.get(CONFIG_MAPS, "a", namespace)


async def test_an_object_that_exists_is_not_created_again(client: KubeClient, namespace: str) -> None:
    await create(client, "a", namespace)
    with pytest.raises(AlreadyExists):
        await create(client, "a", namespace)


async def test_a_stale_write_is_a_conflict_whatever_the_verb(client: KubeClient, namespace: str) -> None:
    old = await create(client, "a", namespace, k="1")
    version = old["metadata"]["resourceVersion"]
    await client.patch_merge(CONFIG_MAPS, "a", namespace, {"data": {"k": "2"}})
    with pytest.raises(Conflict):
        await client.replace(CONFIG_MAPS, {**old, "data": {"k": "3"}})
    with pytest.raises(Conflict):
        await client.patch_merge(
            CONFIG_MAPS, "a", namespace, {"metadata": {"resourceVersion": version}, "data": {"k": "3"}}
        )
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "a", namespace, resource_version=version)
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "a", namespace, uid="another")
    test = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    with pytest.raises(Invalid):
        await client.patch_json(CONFIG_MAPS, "a", namespace, test)
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"k": "2"}


async def test_apply_creates_then_changes_only_its_own_fields(client: KubeClient, namespace: str) -> None:
    first = await client.apply(CONFIG_MAPS, config_map("a", namespace, mine="1"), field_manager="one")
    await client.apply(CONFIG_MAPS, config_map("a", namespace, other="1"), field_manager="two")
    again = await client.apply(CONFIG_MAPS, config_map("a", namespace, mine="2"), field_manager="one")
    assert again["data"] == {"mine": "2", "other": "1"}
    assert again["metadata"]["uid"] == first["metadata"]["uid"]


async def test_apply_names_the_field_that_another_manager_owns(client: KubeClient, namespace: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("a", namespace, k="1"), field_manager="one")
    with pytest.raises(Conflict, match='conflict with "one"') as refused:
        await client.apply(CONFIG_MAPS, config_map("a", namespace, k="2"), field_manager="two")
    assert [cause.field for cause in refused.value.causes] == [".data.k"]
    forced = await client.apply(CONFIG_MAPS, config_map("a", namespace, k="2"), field_manager="two", force=True)
    assert forced["data"] == {"k": "2"}


async def test_an_unknown_field_is_an_error_and_not_silence(client: KubeClient, namespace: str) -> None:
    body = {**config_map("a", namespace), "dta": {"k": "1"}}
    with pytest.raises(Invalid, match='unknown field "dta"'):
        await client.create(CONFIG_MAPS, body)
    with pytest.raises(Invalid, match="dta: field not declared in schema"):
        await client.apply(CONFIG_MAPS, body)


async def test_the_field_manager_is_the_clients_name(client: KubeClient, namespace: str) -> None:
    created = await create(client, "a", namespace, k="1")
    assert [entry["manager"] for entry in created["metadata"]["managedFields"]] == ["tidewheel-test"]


async def test_a_list_in_pages_is_the_whole_list(access: Access, client: KubeClient, namespace: str) -> None:
    for number in range(7):
        await create(client, f"m-{number}", namespace)
    async with KubeClient(access, settings=ClientSettings(page_size=3)) as paging:
        listed = await paging.list(CONFIG_MAPS, namespace, label_selector="test=yes")
    assert sorted(item["metadata"]["name"] for item in listed.items) == [f"m-{number}" for number in range(7)]
    assert {(item["apiVersion"], item["kind"]) for item in listed.items} == {("v1", "ConfigMap")}


async def test_selectors_are_obeyed(client: KubeClient, namespace: str) -> None:
    await create(client, "a", namespace)
    await create(client, "b", namespace)
    by_field = await client.list(CONFIG_MAPS, namespace, field_selector="metadata.name=b")
    assert [item["metadata"]["name"] for item in by_field.items] == ["b"]
    assert (await client.list(CONFIG_MAPS, namespace, label_selector="test=no")).items == []


async def test_a_watch_tells_what_happened_since_the_list(client: KubeClient, namespace: str) -> None:
    listed = await client.list(CONFIG_MAPS, namespace)
    await create(client, "a", namespace, k="1")
    await client.patch_merge(CONFIG_MAPS, "a", namespace, {"data": {"k": "2"}})
    await client.delete(CONFIG_MAPS, "a", namespace)
    watch = client.watch(
        CONFIG_MAPS, namespace=namespace, resource_version=listed.resource_version, label_selector="test=yes"
    )
    seen = []
    async with aclosing(watch):
        async for event in watch:
            seen.append((event.type, event.object["data"]))
            if event.type == "DELETED":
                break
    assert seen == [("ADDED", {"k": "1"}), ("MODIFIED", {"k": "2"}), ("DELETED", {"k": "2"})]


async def test_a_missing_kind_is_not_found(client: KubeClient, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.list(Resource("nobody.dev", "v1", "things", "Thing"), namespace)


async def test_what_an_identity_may_not_do_is_forbidden(control_plane: ControlPlane, namespace: str) -> None:
    stranger = control_plane.kubeconfig_for("stranger", user="stranger")
    async with KubeClient(load_access(kubeconfig=stranger)) as client:
        review = await client.create(SELF_SUBJECT_REVIEWS, {"kind": "SelfSubjectReview"})
        assert review["status"]["userInfo"]["username"] == "stranger"
        with pytest.raises(Forbidden, match='"stranger" cannot list resource "pods"'):
            await client.list(PODS, namespace)


async def test_a_cluster_scoped_kind_needs_no_namespace(client: KubeClient) -> None:
    assert (await client.list(NODES)).items == []


async def test_a_namespaced_name_without_a_namespace_is_a_bug_of_ours(client: KubeClient) -> None:
    with pytest.raises(ValueError, match="ConfigMap a needs a namespace"):
        await client.get(CONFIG_MAPS, "a")


async def test_a_raw_request_returns_the_answer_whatever_it_is(client: KubeClient) -> None:
    assert (await client.request_raw("GET", "/readyz")).body == b"ok"
    assert (await client.request_raw("GET", "/nothing")).status == 404
