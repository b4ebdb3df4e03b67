"""Web pages of other origins: none unless named, and those see our headers."""

import pytest
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.programs import Gateway
from tests.gateway.replies.engines import TokenEngine
from tests.gateway.replies.test_resuming import fetch
from tests.gateway.wire import HI, ask

from tidewheel.gateway.cors import Cors, OriginError
from tidewheel.gateway.program import Program
from tidewheel.gateway.settings import Settings

PAGE, OTHER = "https://chat.example.org", "https://evil.example.org"
QUESTION = ("access-control-request-method: POST", "access-control-request-headers: authorization,x-stainless-os")


@pytest.mark.parametrize("wrong", ["chat.example.org", "https://a.org/path", "https://*.a.org", "a b"])
def test_what_is_no_origin_is_refused(wrong: str) -> None:
    with pytest.raises(OriginError, match="no origin"):
        Cors.parse(wrong)
    assert Cors.parse(" , ") is None


def test_a_wrong_origin_ends_the_program_before_anybody_is_served() -> None:
    with pytest.raises(OriginError, match=r"chat\.example\.org"):
        Program(Settings(cors_origins="chat.example.org"))


async def preflight(gateway: Gateway, origin: str) -> tuple[int, dict[str, str]]:
    status, headers, _ = await fetch(gateway, "/v1/chat/completions", f"origin: {origin}", *QUESTION, method="OPTIONS")
    return status, headers


@pytest.mark.component
async def test_named_pages_may_ask_and_read_what_we_say(start_upstream: StartUpstream, serve: StartGateway) -> None:
    gateway = await serve(
        {"v1": [await start_upstream(TokenEngine())]}, "--cors-origins", f"{PAGE},http://localhost:3000"
    )
    status, told = await preflight(gateway, PAGE)
    assert (status, told["access-control-allow-origin"]) == (204, PAGE)
    assert told["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "POST" in told["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in told
    answers = [
        await ask(gateway, {**HI, "stream": True}, f"origin: {PAGE}"),
        await ask(gateway, {**HI, "model": "none"}, f"origin: {PAGE}"),
        await ask(gateway, {"model": "chat", "input": "hi"}, f"origin: {PAGE}", path="/v1/responses"),
        await fetch(gateway, "/v1/replies/none", f"origin: {PAGE}"),
    ]
    assert [answer[0] for answer in answers] == [200, 404, 200, 404]
    for _, headers, _ in answers:
        assert headers["access-control-allow-origin"] == PAGE
        assert {"x-request-id", "x-tidewheel-reply"} <= set(headers["access-control-expose-headers"].split(", "))
        assert headers["vary"] == "Origin"


@pytest.mark.component
async def test_other_pages_are_told_nothing(start_upstream: StartUpstream, serve: StartGateway) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]}, "--cors-origins", PAGE)
    status, told = await preflight(gateway, OTHER)
    assert status == 204
    assert not [name for name in told if name.startswith("access-control")]
    _, headers, _ = await ask(gateway, HI, f"origin: {OTHER}")
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.component
async def test_without_the_setting_there_is_no_sharing(start_upstream: StartUpstream, serve: StartGateway) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]})
    assert (await preflight(gateway, PAGE))[0] == 405
    _, headers, _ = await ask(gateway, HI, f"origin: {PAGE}")
    assert not [name for name in headers if name.startswith("access-control") or name == "vary"]
