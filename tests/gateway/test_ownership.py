"""What a request takes it gives back exactly once, wherever it ends."""

import asyncio
import random
import types
from collections.abc import Coroutine, Generator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.gateway.programs import table
from tests.gateway.upstreams import (
    Behaviour,
    Call,
    Upstream,
    chat_event,
    chat_stream,
    hangs,
    replies,
    running_upstream,
    says,
)
from tests.gateway.wire import HI
from tests.waiting import PATIENCE_SECONDS

from tidewheel.gateway.exchange import Exchange
from tidewheel.gateway.replies.pacing import Pacer
from tidewheel.gateway.requests import Request
from tidewheel.gateway.server import Responder
from tidewheel.gateway.serving import DataPlane
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import VersionKey, parse_snapshot
from tidewheel.gateway.work import Surroundings

KEY = VersionKey("default", "chat", "v1")
SETTINGS = Settings(heartbeat_interval=0.02, access_log=False)


class Sink:
    """A connection that takes everything."""

    draining = False

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def answered(self, *, close: bool) -> None:
        self.closed = close

    def abort(self) -> None:
        self.closed = True


@types.coroutine
def cancelled_at(step: int, inner: Coroutine[Any, Any, None]) -> Generator[Any, Any, bool]:
    """Run a coroutine and cancel it at its n-th suspension; True if it came that far."""
    try:
        for _ in range(1, step):
            yield inner.send(None)
        inner.send(None)
    except StopIteration:
        return False
    try:
        inner.throw(asyncio.CancelledError())
    except (asyncio.CancelledError, StopIteration):
        return True
    raise AssertionError("it went on after it was cancelled")


def exchange(plane: DataPlane, sink: Sink, *, stream: bool) -> Exchange:
    import orjson

    body = orjson.dumps({**HI, "stream": stream})
    request = Request("POST", "/v1/chat/completions", "", {}, body, keep_alive=True, chunked_replies=True)
    around = Surroundings(
        SETTINGS,
        plane.router,
        plane.metrics,
        lambda: None,
        lambda: datetime.now(UTC),
        random.Random(7),
        plane.desk,
        plane.placement,
        plane.book,
        Pacer(8),
    )
    return Exchange(request, Responder(sink, request), around=around)  # type: ignore[arg-type]


def plane_for(*upstreams: Upstream) -> DataPlane:
    plane = DataPlane(SETTINGS, authorization=lambda: None)
    endpoints = {"default/chat-v1": [upstream.address for upstream in upstreams]}
    tables = [table(weights={"v1": 10_000})]
    plane.apply(parse_snapshot({"tables": tables, "endpoints": endpoints}, observed_at="2026-01-01T00:00:00Z"))
    return plane


def held(plane: DataPlane) -> list[float]:
    """Every counter of what is taken."""
    series = plane.metrics.of(KEY)
    return [
        *(replica.in_flight for replica in plane.router.fleet.replicas(KEY)),
        series.open_requests,
        series.in_flight._value.get(),
        series.streams_open._value.get(),
        *(value for gate in plane.desk.gates().values() for value in (gate.state.slots, gate.state.tokens)),
        *(len(gate.state.lanes) for gate in plane.desk.gates().values()),
    ]


async def resets(call: Call) -> None:
    call.hang_up()


async def one_then_reset(call: Call) -> None:
    call.begin_stream()
    call.chunk(chat_event("one"))
    await asyncio.sleep(0.03)
    call.hang_up()


async def slow(call: Call) -> None:
    await asyncio.sleep(0.05)
    call.begin_stream()
    for event in chat_stream("one", "two"):
        call.chunk(event)
        await asyncio.sleep(0.01)
    call.end_chunks()


FULL = replies(429, b'{"error":{"message":"full","type":"x","param":null,"code":null}}')
WORLDS: dict[str, list[Behaviour]] = {
    "answers": [says("hi there")],
    "slow": [slow],
    "resets, then answers": [resets, says("hi")],
    "full, then answers": [FULL, says("hi")],
    "all reset": [resets, resets],
    "breaks in the stream": [one_then_reset],
    "hangs": [hangs],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("world", WORLDS)
async def test_cancelled_at_any_await_everything_is_given_back(world: str, stream: bool) -> None:
    """vllm-router#215, #200: counters return to 0 and are never negative."""
    upstreams = [running_upstream(behave) for behave in WORLDS[world]]
    started = [await upstream.__aenter__() for upstream in upstreams]
    plane, step, reached = plane_for(*started), 0, True
    try:
        while reached and step < 40:
            step += 1
            for replica in plane.router.fleet.replicas(KEY):
                replica.suspended_until = replica.pressed_until = 0.0
            reached = await cancelled_at(step, exchange(plane, Sink(), stream=stream).run())
            assert held(plane) == [0] * len(held(plane)), f"cancelled at await {step}"
            if world == "hangs" and step == 2:
                break  # what it waits for now never comes
        assert step > 1
        plane.router.fleet.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(upstream.open_connections for upstream in started):
                await asyncio.sleep(0.005)
    finally:
        for upstream in upstreams:
            await upstream.__aexit__(None, None, None)


async def test_chaos_leaves_the_counters_at_zero() -> None:
    """vllm-router#197, #216, litellm#20256: requests cancelled at random times while replicas misbehave at random."""
    rng = random.Random(20261130)

    async def whatever(call: Call) -> None:
        await asyncio.sleep(rng.random() * 0.01)
        await rng.choice([says("hi there"), resets, one_then_reset, FULL, hangs, slow])(call)

    upstreams = [running_upstream(whatever) for _ in range(3)]
    started = [await upstream.__aenter__() for upstream in upstreams]
    plane = plane_for(*started)
    try:
        tasks = []
        for _ in range(300):
            task = asyncio.ensure_future(exchange(plane, Sink(), stream=rng.random() < 0.5).run())
            tasks.append(task)
            asyncio.get_running_loop().call_later(rng.random() * 0.1, task.cancel)
            if rng.random() < 0.2:
                await asyncio.sleep(0.005)
            assert min(held(plane)) >= 0
        await asyncio.gather(*tasks, return_exceptions=True)
        assert held(plane) == [0] * len(held(plane))
    finally:
        plane.router.fleet.close()
        for upstream in upstreams:
            await upstream.__aexit__(None, None, None)
