"""Prompts too long for the version of the split go where there is room."""

import pytest
from tests.gateway.conftest import (  # noqa: F401 - fixtures
    StartGateway,
    StartUpstream,
    pytest_asyncio_loop_factories,
    stack,
    start,
    start_upstream,
)
from tests.gateway.programs import table, write_routing
from tests.gateway.upstreams import says
from tests.gateway.wire import HI, ask

from tidewheel.gateway.placement.pools import version_with_room
from tidewheel.gateway.snapshot import Table, parse_table

SIZES = {"short": 2048, "long": 32_768, "huge": 131_072}


def pools(*rejected: str) -> Table:
    body = table(weights={"short": 10_000, "long": 0, "huge": 0})
    for target in body["spec"]["targets"]:
        target["maxModelLen"] = SIZES[target["version"]]
    body["spec"]["rejected"] = [
        {"digest": f"sha256:{version}", "version": version, "reason": "slow", "at": "2026-01-01T00:00:00Z"}
        for version in rejected
    ]
    return parse_table(body, observed_at="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("need", "ready", "rejected", "version"),
    [
        (100, {"short", "long", "huge"}, (), "short"),
        (10_000, {"short", "long", "huge"}, (), "long"),
        (100_000, {"short", "long", "huge"}, (), "huge"),
        (10_000, {"short", "huge"}, (), "huge"),
        (10_000, {"short", "long", "huge"}, ("long",), "huge"),
        (10_000, {"short"}, (), "short"),
        (1_000_000, {"short", "long", "huge"}, (), "short"),
    ],
)
def test_the_smallest_pool_with_room_takes_it(
    need: int, ready: set[str], rejected: tuple[str, ...], version: str
) -> None:
    assert version_with_room(pools(*rejected), "short", need=need, is_ready=ready.__contains__) == version


async def test_a_long_prompt_is_answered_by_the_pool_that_declares_room(
    start: StartGateway,  # noqa: F811
    start_upstream: StartUpstream,  # noqa: F811
    tmp_path: object,
) -> None:
    short, long = await start_upstream(says("short")), await start_upstream(says("long"))
    body = table(weights={"short": 10_000, "long": 0})
    for target in body["spec"]["targets"]:
        target["maxModelLen"] = SIZES[target["version"]]
    endpoints = {"default/chat-short": [short.address], "default/chat-long": [long.address]}
    routing = write_routing(tmp_path / "routing.json", [body], endpoints)  # type: ignore[operator]
    gateway = await start("--static", str(routing))
    large = {**HI, "messages": [{"role": "user", "content": "word " * 4000}]}
    assert (await ask(gateway, HI))[1]["x-tidewheel-version"] == "short"
    assert (await ask(gateway, large))[1]["x-tidewheel-version"] == "long"
    assert (await ask(gateway, large, "x-version-pin: short"))[1]["x-tidewheel-version"] == "short"
