"""A peer is not blamed for the lateness of the gateway's own loop."""

import asyncio
import time

import pytest
from tests.gateway.conftest import StartUpstream
from tests.gateway.upstreams import hangs

from tidewheel.gateway.patience import patience
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.upstream import Pool

LIMIT = 0.08


async def test_a_peer_that_never_answers_is_given_up() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with patience(LIMIT):
            await asyncio.Event().wait()
    assert time.monotonic() - began >= LIMIT


async def test_a_replica_that_accepts_in_time_is_reached_however_late_the_loop_looks(
    start_upstream: StartUpstream,
) -> None:
    """400 connections begun in one turn of a busy loop ended as 503 "no connection in time"."""
    upstream = await start_upstream(hangs)
    pool = Pool("127.0.0.1", upstream.port, settings=Settings(connect_timeout=LIMIT))
    connecting = asyncio.ensure_future(pool.connect())
    await asyncio.sleep(0)
    time.sleep(3 * LIMIT)  # noqa: ASYNC251 - the loop itself is what is late
    connection = await connecting
    assert connection.is_open
    connection.abort()


async def test_many_late_turns_of_the_loop_are_not_counted_either() -> None:
    answered = asyncio.Event()

    def work(turns: int) -> None:
        time.sleep(LIMIT)
        loop.call_soon(work, turns - 1) if turns else answered.set()

    loop = asyncio.get_running_loop()
    loop.call_soon(work, 5)
    async with patience(LIMIT):
        await answered.wait()


async def test_nothing_is_left_behind_by_a_wait_that_was_cancelled() -> None:
    async def wait() -> None:
        async with patience(LIMIT):
            await asyncio.Event().wait()

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(2 * LIMIT)
    assert waiting.cancelled()
