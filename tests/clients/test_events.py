"""Events about our objects, on the real API server."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.clients.configmaps import create
from tests.faults.proxy import ApiProxy, Refuse, calls

from tidewheel.clients.events import EventRecorder, EventSettings
from tidewheel.clients.kubernetes import EVENTS, Access, KubeClient, KubeObject

pytestmark = pytest.mark.component


async def posted(client: KubeClient, about: KubeObject) -> list[KubeObject]:
    """The Events about an object, oldest first."""
    namespace = about["metadata"]["namespace"]
    listed = await client.list(EVENTS, namespace, field_selector=f"involvedObject.uid={about['metadata']['uid']}")
    return sorted(listed.items, key=lambda event: str(event["eventTime"]))


async def test_an_event_is_found_by_its_object(client: KubeClient, namespace: str) -> None:
    about = await create(client, "a", namespace)
    recorder = EventRecorder(client, component="operator", instance="pod-1")
    assert await recorder.post(about, reason="Tried", message="twice", event_type="Warning")
    (event,) = await posted(client, about)
    assert (event["reason"], event["message"], event["type"], event["count"]) == ("Tried", "twice", "Warning", 1)
    assert event["reportingComponent"] == "tidewheel.dev/operator"


async def test_a_flood_is_cut_off_and_counted_in_the_next(client: KubeClient, namespace: str) -> None:
    about = await create(client, "a", namespace)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    settings = EventSettings(burst=2, refill_seconds=60)
    recorder = EventRecorder(client, component="operator", settings=settings, now=lambda: moment)
    accepted = [await recorder.post(about, reason="Tried", message=str(n)) for n in range(5)]
    assert accepted == [True, True, False, False, False]
    assert await recorder.post(about, reason="Other", message="of its own"), "another reason has its own bucket"
    moment += timedelta(seconds=60)
    assert await recorder.post(about, reason="Tried", message="later")
    events = await posted(client, about)
    assert [(event["message"], event["count"]) for event in events if event["reason"] == "Tried"][-1] == ("later", 4)


async def test_an_event_that_cannot_be_posted_harms_nothing(access: Access, client: KubeClient, namespace: str) -> None:
    about = await create(client, "a", namespace)
    with ApiProxy(access) as proxy:
        proxy.inject(calls("create", resource="events"), Refuse(403, "Forbidden"))
        async with KubeClient(proxy.access) as refused:
            assert not await EventRecorder(refused, component="x").post(about, reason="Tried", message="m")


async def test_a_long_message_is_shortened_to_what_fits(client: KubeClient, namespace: str) -> None:
    about = await create(client, "a", namespace)
    assert await EventRecorder(client, component="x").post(about, reason="Tried", message="m" * 5000)
