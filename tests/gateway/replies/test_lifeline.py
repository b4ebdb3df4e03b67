"""Dead or late: what a gateway hears of another one."""

import asyncio
import socket

import pytest

from tidewheel.gateway.replies.stores.lifeline import Lifeline, Sign, ask, own_address


async def test_a_gateway_that_lives_says_its_name() -> None:
    lifeline = Lifeline("a1")
    address = await lifeline.open("127.0.0.1")
    assert await ask(address, name="a1", seconds=60) is Sign.ALIVE
    assert await ask(address, name="b2", seconds=60) is Sign.GONE, "a new process has got the port of a dead one"
    lifeline.close()
    assert await ask(address, name="a1", seconds=60) is Sign.GONE


async def test_one_that_hangs_or_cannot_be_asked_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens_only:
        address = f"127.0.0.1|{listens_only.getsockname()[1]}"
        assert await ask(address, name="a1", seconds=0.1) is Sign.SILENT
    for unknown in ("", "127.0.0.1|x"):
        async with asyncio.timeout(60):
            assert await ask(unknown, name="a1", seconds=60) is Sign.SILENT


@pytest.mark.parametrize(
    ("host", "towards", "own"),
    [
        ("10.1.2.3", ("redis", 6379), "10.1.2.3"),
        ("0.0.0.0", ("127.0.0.1", 6379), "127.0.0.1"),
        ("::", ("::1", 6379), "::1"),
        ("0.0.0.0", None, "127.0.0.1"),
    ],
    ids=["named", "any", "any IPv6", "store behind a file"],
)
def test_others_are_told_an_address_that_they_can_reach(host: str, towards: tuple[str, int] | None, own: str) -> None:
    assert own_address(host, towards=towards) == own
