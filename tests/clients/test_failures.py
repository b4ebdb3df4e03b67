"""What the client does when the API server, or the way to it, misbehaves."""

import time
from pathlib import Path

import pytest
from tests.clients.configmaps import QUICK, config_map, create, through
from tests.faults.proxy import WRITES, ApiProxy, Cut, LoseAnswer, Refuse, Say, TcpProxy, calls

from tidewheel.clients.credentials import TokenFile
from tidewheel.clients.errors import ApiError, ServerUnavailable, TooManyRequests, Unauthorized
from tidewheel.clients.kubernetes import CONFIG_MAPS, Access, KubeClient

pytestmark = pytest.mark.component


async def test_a_read_is_repeated_when_the_connection_breaks(access: Access, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as client:
            proxy.inject(calls("list"), Cut(), times=2)
            assert (await client.list(CONFIG_MAPS, namespace, label_selector="test=yes")).items == []


async def test_a_read_is_repeated_only_so_often(access: Access, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as client:
            proxy.inject(calls("list"), Refuse(503), times=None)
            with pytest.raises(ServerUnavailable, match="refused by the test's proxy"):
                await client.list(CONFIG_MAPS, namespace)
            assert len(proxy.seen(calls("list"))) == 1 + QUICK.retries


async def test_a_create_without_an_answer_is_not_repeated(access: Access, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as client:
            proxy.inject(WRITES, LoseAnswer())
            with pytest.raises(ServerUnavailable):
                await create(client, "a", namespace)
            assert len(proxy.seen(calls("create"))) == 1
            assert (await client.get(CONFIG_MAPS, "a", namespace))["metadata"]["name"] == "a"


async def test_an_apply_without_an_answer_is_repeated(access: Access, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as client:
            proxy.inject(WRITES, LoseAnswer())
            applied = await client.apply(CONFIG_MAPS, config_map("a", namespace, k="1"))
            assert applied["data"] == {"k": "1"}
            assert len(proxy.seen(calls("patch"))) == 2


async def test_a_429_is_waited_for_even_by_a_create(access: Access, namespace: str) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as client:
            proxy.inject(WRITES, Refuse(429, "TooManyRequests", retry_after=1))
            began = time.monotonic()
            await create(client, "a", namespace)
            assert time.monotonic() - began >= 1  # what Retry-After asked for
            proxy.inject(WRITES, Refuse(429, "TooManyRequests", retry_after=60))
            with pytest.raises(TooManyRequests):
                await create(client, "b", namespace)


async def test_a_call_never_takes_longer_than_its_timeout(access: Access, namespace: str) -> None:
    with TcpProxy(access.server) as proxy:
        cut_off = Access(proxy.url, ssl_context=access.ssl_context)
        async with KubeClient(cut_off, settings=QUICK) as client:
            await client.list(CONFIG_MAPS, namespace)
            proxy.stall()
            with pytest.raises(ServerUnavailable, match="cannot be asked"):
                await client.list(CONFIG_MAPS, namespace)


async def test_a_refused_connection_names_the_server(access: Access, namespace: str) -> None:
    with TcpProxy(access.server) as proxy:
        async with KubeClient(Access(proxy.url, ssl_context=access.ssl_context), settings=QUICK) as client:
            proxy.refuse()
            with pytest.raises(ServerUnavailable, match=f"127.0.0.1:{proxy.port}"):
                await client.get(CONFIG_MAPS, "a", namespace)
            proxy.heal()
            assert (await client.list(CONFIG_MAPS, namespace)).resource_version


async def test_a_refused_token_is_read_again_and_the_call_repeated(
    access: Access, namespace: str, tmp_path: Path
) -> None:
    """kubernetes-client/python#1768, lightkube#141: a rotated token must work without a restart."""
    token = tmp_path / "token"
    token.write_text("old\n")
    with ApiProxy(access) as proxy:
        rotating = Access(proxy.url, credentials=TokenFile(token))
        async with KubeClient(rotating, settings=QUICK) as client:
            await client.list(CONFIG_MAPS, namespace)
            token.write_text("new\n")
            proxy.inject(calls(), Refuse(401, "Unauthorized"))
            await create(client, "a", namespace)
    assert [call.authorization for call in proxy.calls] == ["Bearer old", "Bearer old", "Bearer new"]


async def test_a_token_refused_twice_is_an_error_and_no_loop(access: Access, namespace: str, tmp_path: Path) -> None:
    """kopf#1158: identical credentials after a 401 must neither loop nor end the program."""
    token = tmp_path / "token"
    token.write_text("bad")
    with ApiProxy(access) as proxy:
        async with KubeClient(Access(proxy.url, credentials=TokenFile(token)), settings=QUICK) as client:
            proxy.inject(calls(), Refuse(401, "Unauthorized"), times=None)
            with pytest.raises(Unauthorized):
                await client.list(CONFIG_MAPS, namespace)
    assert len(proxy.calls) == 2


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b"{}"])
async def test_an_answer_of_something_else_is_no_empty_list(access: Access, namespace: str, body: bytes) -> None:
    with ApiProxy(access) as proxy:
        async with through(proxy) as client:
            proxy.inject(calls("list"), Say(body), times=None)
            with pytest.raises(ServerUnavailable, match="not an answer of an API server"):
                await client.list(CONFIG_MAPS, namespace)


async def test_a_redirect_is_not_followed(access: Access, namespace: str) -> None:
    """It would carry the token to another server."""
    with ApiProxy(access) as proxy, ApiProxy(access) as elsewhere:
        async with through(proxy) as client:
            proxy.inject(calls(), Refuse(307, location=f"{elsewhere.url}/api/v1/configmaps"))
            with pytest.raises(ApiError, match="refused by the test's proxy"):
                await client.list(CONFIG_MAPS, namespace)
            assert elsewhere.calls == []
