"""The local copy equals the collection again after anything that can happen to a watch."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.clients.configmaps import QUICK, create, through
from tests.faults.proxy import (
    ApiProxy,
    Cut,
    CutInMidEvent,
    DropEvent,
    DuplicateEvent,
    ErrorEvent,
    Mute,
    Refuse,
    ReorderEvent,
    Say,
    TcpProxy,
    calls,
)
from tests.waiting import PATIENCE_SECONDS, eventually

from tidewheel.clients.kubernetes import CONFIG_MAPS, Access, KubeClient, KubeObject
from tidewheel.clients.reflector import Reflector, ReflectorSettings

pytestmark = pytest.mark.component

Change = tuple[str | None, str | None]


class Copy:
    """A reflector's world as its reader saw it."""

    def __init__(self, client: KubeClient, namespace: str, settings: ReflectorSettings | None = None) -> None:
        self.changes: list[Change] = []
        self.reflector = Reflector(
            client,
            CONFIG_MAPS,
            namespace=namespace,
            label_selector="test=yes",
            on_change=lambda old, new: self.changes.append((_value(old), _value(new))),
            settings=settings,
        )

    def has(self, **expected: str) -> bool:
        """Whether the copy holds exactly these names, each with this ``v``."""
        return {name: item["data"]["v"] for (_, name), item in self.reflector.objects.items()} == expected


def _value(item: KubeObject | None) -> str | None:
    return None if item is None else f"{item['metadata']['name']}={item['data']['v']}"


@asynccontextmanager
async def following(
    client: KubeClient, namespace: str, settings: ReflectorSettings | None = None
) -> AsyncIterator[Copy]:
    copy = Copy(client, namespace, settings)
    running = asyncio.create_task(copy.reflector.run())
    try:
        await asyncio.wait_for(copy.reflector.wait_synced(), PATIENCE_SECONDS)
        yield copy
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_every_change_is_reported_once_in_order(client: KubeClient, namespace: str) -> None:
    await create(client, "before", namespace, v="1")
    async with following(client, namespace) as copy:
        await create(client, "a", namespace, v="1")
        await client.patch_merge(CONFIG_MAPS, "a", namespace, {"data": {"v": "2"}})
        await client.delete(CONFIG_MAPS, "before", namespace)
        await eventually(lambda: copy.has(a="2"))
    assert copy.changes == [(None, "before=1"), (None, "a=1"), ("a=1", "a=2"), ("before=1", None)]


async def test_a_quiet_collection_is_heard_of_and_not_listed_again(access: Access, namespace: str) -> None:
    """The server's bookmarks keep the age small; watches that end by themselves cost no list."""
    async with (
        KubeClient(access, settings=QUICK) as client,
        following(client, namespace) as copy,
    ):
        first = copy.reflector._version
        await create(client, "unrelated", "default", v="1")
        await eventually(lambda: copy.reflector._version != first)
        await eventually(lambda: copy.reflector.age_seconds < QUICK.silence_seconds)
        assert copy.reflector.lists == 1
        await client.delete(CONFIG_MAPS, "unrelated", "default")


async def test_what_was_deleted_while_cut_off_is_noticed(access: Access, client: KubeClient, namespace: str) -> None:
    """production-stack#1091: a DELETED lost in a reconnect must not stay in the copy for ever."""
    await create(client, "a", namespace, v="1")
    await create(client, "b", namespace, v="1")
    with TcpProxy(access.server) as proxy:
        async with (
            KubeClient(Access(proxy.url, ssl_context=access.ssl_context), settings=QUICK) as cut_off,
            following(cut_off, namespace) as copy,
        ):
            proxy.refuse()
            await client.delete(CONFIG_MAPS, "a", namespace)
            await eventually(lambda: copy.reflector.last_error)
            assert copy.has(a="1", b="1"), "while nothing can be known, what was known stays"
            proxy.heal()
            await eventually(lambda: copy.has(b="1"))


async def test_a_half_open_connection_is_noticed(access: Access, client: KubeClient, namespace: str) -> None:
    """kopf#957: no byte, no reset. The proxy's kernel acknowledges, so only the silence bound can notice."""
    with TcpProxy(access.server) as proxy:
        async with (
            KubeClient(Access(proxy.url, ssl_context=access.ssl_context), settings=QUICK) as cut_off,
            following(cut_off, namespace) as copy,
        ):
            proxy.stall()
            await create(client, "a", namespace, v="1")
            await eventually(lambda: copy.reflector.last_error)
            assert copy.has()
            proxy.heal()
            await eventually(lambda: copy.has(a="1"))


async def test_default_settings_notice_a_half_open_connection_within_30_s() -> None:
    from tidewheel.clients.kubernetes import ClientSettings

    settings = ClientSettings()
    assert settings.watch_seconds < settings.silence_seconds, "a watch that is well must not be taken for silent"
    assert settings.silence_seconds <= 30


async def test_a_mute_watch_is_replaced(access: Access, client: KubeClient, namespace: str) -> None:
    """Other connections work, this stream says nothing: what a load balancer does that lost one flow."""
    with ApiProxy(access) as proxy:
        async with through(proxy) as muted, following(muted, namespace) as copy:
            fault = proxy.inject(calls("watch"), Mute())
            await create(client, "a", namespace, v="1")
            await eventually(lambda: copy.has(a="1"))
            fault.remove()


@pytest.mark.parametrize(
    "effect",
    [
        pytest.param(ErrorEvent(410, "Expired"), id="410 inside the stream"),
        pytest.param(ErrorEvent(500, "InternalError"), id="500 inside the stream"),
        pytest.param(Refuse(410, "Expired"), id="410"),
        pytest.param(Refuse(401, "Unauthorized"), id="401"),
        pytest.param(Refuse(403, "Forbidden"), id="403"),
        pytest.param(Refuse(429, "TooManyRequests"), id="429"),
        pytest.param(Refuse(503), id="503"),
        pytest.param(Cut(), id="reset"),
        pytest.param(Say(b"<html>\n</html>\n"), id="a web page"),
        pytest.param(Say(b'{"kind": "Status"}\n'), id="JSON that is no event"),
    ],
)
async def test_a_watch_that_cannot_begin_is_followed_by_a_list(
    access: Access, client: KubeClient, namespace: str, effect: ErrorEvent | Refuse | Cut | Say
) -> None:
    with ApiProxy(access) as proxy:
        await create(client, "a", namespace, v="1")
        async with through(proxy) as faulty, following(faulty, namespace) as copy:
            proxy.inject(calls("watch"), effect, times=3)
            await client.delete(CONFIG_MAPS, "a", namespace)
            proxy.break_streams()
            await create(client, "b", namespace, v="1")
            await eventually(lambda: copy.has(b="1"))


async def test_a_stream_cut_inside_an_event_loses_nothing(access: Access, client: KubeClient, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as faulty, following(faulty, namespace) as copy:
            proxy.inject(calls("watch"), CutInMidEvent())
            await create(client, "a", namespace, v="1")
            await eventually(lambda: copy.has(a="1"))


async def test_a_lost_event_is_found_by_the_next_list(access: Access, client: KubeClient, namespace: str) -> None:
    """kubernetes-client/python#801."""
    await create(client, "a", namespace, v="1")
    with ApiProxy(access) as proxy:
        async with (
            through(proxy) as faulty,
            following(faulty, namespace, ReflectorSettings(relist_seconds=1.0)) as copy,
        ):
            lost = proxy.inject(calls("watch"), DropEvent(frozenset({"DELETED"})))
            await client.delete(CONFIG_MAPS, "a", namespace)
            await eventually(lambda: lost.applied)
            await eventually(copy.has)


async def test_a_list_can_be_asked_for(access: Access, client: KubeClient, namespace: str) -> None:
    await create(client, "a", namespace, v="1")
    with ApiProxy(access) as proxy:
        async with through(proxy) as faulty, following(faulty, namespace) as copy:
            lost = proxy.inject(calls("watch"), DropEvent(frozenset({"DELETED"})))
            await client.delete(CONFIG_MAPS, "a", namespace)
            await eventually(lambda: lost.applied)
            copy.reflector.request_list()
            await eventually(copy.has, within_seconds=1)


async def test_an_event_told_twice_is_one_change(access: Access, client: KubeClient, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as faulty, following(faulty, namespace) as copy:
            proxy.inject(calls("watch"), DuplicateEvent(), times=None)
            await create(client, "a", namespace, v="1")
            await client.patch_merge(CONFIG_MAPS, "a", namespace, {"data": {"v": "2"}})
            await client.delete(CONFIG_MAPS, "a", namespace)
            await eventually(lambda: copy.changes and copy.changes[-1][1] is None)
    assert copy.changes == [(None, "a=1"), ("a=1", "a=2"), ("a=2", None)]


async def test_events_out_of_order_are_put_right_by_the_next_watch(
    access: Access, client: KubeClient, namespace: str
) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as faulty, following(faulty, namespace) as copy:
            swapped = proxy.inject(calls("watch"), ReorderEvent())
            await create(client, "a", namespace, v="1")
            await client.patch_merge(CONFIG_MAPS, "a", namespace, {"data": {"v": "2"}})
            await client.delete(CONFIG_MAPS, "a", namespace)
            await eventually(lambda: swapped.applied and len(copy.changes) > 2)
            await eventually(copy.has)


async def test_an_object_replaced_while_nobody_watched_is_two_objects(
    access: Access, client: KubeClient, namespace: str
) -> None:
    """grove#783: the same name with another uid is another object."""
    await create(client, "a", namespace, v="1")
    with ApiProxy(access) as proxy:
        async with through(proxy) as faulty, following(faulty, namespace) as copy:
            fault = proxy.inject(calls("list", "watch"), Refuse(503), times=None)
            proxy.break_streams()
            await client.delete(CONFIG_MAPS, "a", namespace)
            await create(client, "a", namespace, v="2")
            fault.remove()
            await eventually(lambda: copy.has(a="2"))
    assert copy.changes == [(None, "a=1"), ("a=1", None), (None, "a=2")]


async def test_a_reader_that_raises_is_not_blinded(client: KubeClient, namespace: str) -> None:
    seen: list[str] = []

    def read(old: KubeObject | None, new: KubeObject | None) -> None:
        assert new is not None
        seen.append(new["metadata"]["name"])
        if new["metadata"]["name"] == "bad":
            raise RuntimeError("cannot bear it")

    reflector = Reflector(client, CONFIG_MAPS, namespace=namespace, label_selector="test=yes", on_change=read)
    running = asyncio.create_task(reflector.run())
    await reflector.wait_synced()
    await create(client, "bad", namespace, v="1")
    await create(client, "good", namespace, v="1")
    await eventually(lambda: seen == ["bad", "good"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_server_that_refuses_is_not_asked_in_a_hot_loop(
    access: Access, client: KubeClient, namespace: str
) -> None:
    """kopf: a server answering 410 got 113 calls in 6 s."""
    with ApiProxy(access) as proxy:
        async with through(proxy) as faulty, following(faulty, namespace) as copy:
            proxy.inject(calls("watch"), Refuse(410, "Expired"), times=None)
            proxy.break_streams()
            before, began = len(proxy.calls), time.monotonic()
            await eventually(lambda: time.monotonic() - began > 3)
            assert len(proxy.calls) - before < 20
            proxy.clear()
            await create(client, "a", namespace, v="1")
            await eventually(lambda: copy.has(a="1"))
