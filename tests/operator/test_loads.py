"""What engines are asked, and when: over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from tests.operator.builders import KEY, pod, version
from tests.waiting import eventually

from tidewheel.operator.planning.records import ModelKey, PodCondition, PodRecord
from tidewheel.operator.reconciling.loads import LoadMonitor

V1 = version("v1")


@dataclass
class Engine:
    streams: int = 2
    draining: bool = False
    broken: bool = False
    tokens: list[str] = field(default_factory=list)
    port: int = 0


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()

    async def load(request: web.Request) -> web.Response:
        made.tokens.append(request.headers.get("Authorization", ""))
        if made.broken:
            return web.Response(text="not JSON", content_type="application/json")
        return web.json_response({"running": made.streams, "waiting": 1, "draining": made.draining})

    async def drain(request: web.Request) -> web.Response:
        made.draining = True
        return web.json_response({"draining": True})

    app = web.Application()
    app.router.add_get("/load", load)
    app.router.add_post("/drain", drain)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


def monitor(engine: Engine, changes: list[ModelKey], token: Path | None = None) -> LoadMonitor:
    return LoadMonitor(
        token_file=token,
        poll_seconds=0.01,
        timeout_seconds=5,
        propagation_seconds=0.2,
        now=lambda: datetime.now(UTC),
        on_change=changes.append,
        port=engine.port,
    )


def serving() -> PodRecord:
    return replace(pod(V1), ip="127.0.0.1")


def draining(seconds: float) -> PodRecord:
    since = datetime.now(UTC) - timedelta(seconds=seconds)
    return replace(serving(), gate=PodCondition("False", since=since))


async def test_streams_running_and_waiting_are_counted_with_the_token_of_the_moment(
    engine: Engine, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    async with monitor(engine, [], token) as loads:
        loads.follow(KEY, [serving()])
        await eventually(lambda: loads.readings)
        assert next(iter(loads.readings.values())).streams == 3
        token.write_text("two")
        await eventually(lambda: "Bearer two" in engine.tokens)
    assert engine.tokens[0] == "Bearer one"
    assert not engine.draining, "a replica that serves is never told to drain"


async def test_a_draining_engine_is_told_so_once_gateways_know(engine: Engine) -> None:
    async with monitor(engine, []) as loads:
        loads.follow(KEY, [draining(0.0)])
        await eventually(lambda: loads.readings)
        assert not engine.draining
        await eventually(lambda: engine.draining)
        await eventually(lambda: next(iter(loads.readings.values())).draining)


async def test_an_answer_that_makes_no_sense_is_unknown_and_not_idle(engine: Engine) -> None:
    engine.broken = True
    async with monitor(engine, []) as loads:
        loads.follow(KEY, [serving()])
        await eventually(lambda: loads.readings)
        assert next(iter(loads.readings.values())).streams is None


async def test_only_a_change_that_matters_wakes_the_model(engine: Engine) -> None:
    changes: list[ModelKey] = []
    engine.draining = True
    async with monitor(engine, changes) as loads:
        loads.follow(KEY, [draining(1)])
        await eventually(lambda: changes)
        asked = len(engine.tokens)
        engine.streams = 1
        await eventually(lambda: len(engine.tokens) > asked + 5)
        assert changes == [KEY], "two streams or one is no difference"
        engine.streams = -1  # with the one that waits: none
        await eventually(lambda: len(changes) == 2)


async def test_a_pod_that_is_not_followed_any_more_is_asked_no_more(engine: Engine) -> None:
    async with monitor(engine, []) as loads:
        loads.follow(KEY, [serving()])
        await eventually(lambda: loads.readings)
        loads.follow(ModelKey("shop", "other"), [])
        assert loads.readings, "another model's pods are none of its business"
        loads.follow(KEY, [])
        assert not loads.readings
        await asyncio.sleep(0)
        asked = len(engine.tokens)
        await asyncio.sleep(0.05)
        assert len(engine.tokens) <= asked + 1
