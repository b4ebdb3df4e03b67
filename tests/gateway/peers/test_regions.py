"""Two gateways of two regions: what would wait long in one is served by the other."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import Gateway, table, write_routing
from tests.gateway.replies.engines import TokenEngine, whole_text
from tests.gateway.replies.reading import numbers_of, text_of
from tests.gateway.replies.test_resuming import fetch
from tests.gateway.upstreams import Call
from tests.gateway.wire import HI, ask, post

from tidewheel.gateway.peers.tickets import Signer, SpillTicket, body_hash

pytestmark = pytest.mark.component

KEY = b"a key that both regions have"
STREAM = {**HI, "stream": True, "max_tokens": 20}
PATIENT = ("--paid-wait-limit", "600", "--free-wait-limit", "600")


@dataclass
class SmallEngine(TokenEngine):
    """Takes one request at a time, and says so."""

    async def __call__(self, call: Call) -> None:
        if call.line.startswith("GET /load"):
            load = {"max_num_seqs": 1, "total_blocks": 1000, "free_blocks": 1000, "running": 0, "waiting": 0}
            call.reply(200, orjson.dumps(load))
            return
        await super().__call__(call)


@dataclass
class Region:
    """One gateway with one engine."""

    gateway: Gateway
    engine: SmallEngine
    calls: list[Call]

    def lanes(self) -> list[str]:
        """Of what the engine was asked."""
        return [call.headers["x-tidewheel-lane"] for call in self.calls if call.line.startswith("POST")]


StartRegion = Callable[..., Awaitable[Region]]


@pytest.fixture
def start_region(start: StartGateway, start_upstream: StartUpstream, tmp_path: Path) -> StartRegion:
    """``start_region(name, engine, *arguments)``."""
    key = tmp_path / "key"
    key.write_bytes(KEY)

    async def start_one(
        name: str, engine: SmallEngine, *arguments: str, weights: dict[str, int] | None = None
    ) -> Region:
        upstream = await start_upstream(engine)
        shares = weights or {"v1": 10_000}
        ends = {f"default/chat-{version}": [upstream.address] for version in shares}
        routing = write_routing(tmp_path / f"{name}.json", [table(weights=shares)], ends)
        fast = ("--load-poll-seconds", "0.02", "--load-stale-seconds", "60", "--peer-poll-seconds", "0.02")
        fast += ("--peer-stale-seconds", "60", "--spill-penalty", "0")
        common = ("--static", str(routing), "--region", name, "--peer-key-file", str(key), "--peer-timeout", "60")
        gateway = await start(*common, *fast, *PATIENT, *arguments)
        return Region(gateway, engine, upstream.calls)

    return start_one


async def make_busy(region: Region, connect: Connect, *, tokens: int = 100_000) -> None:
    """A rate is known, and what the engine takes is taken for long."""
    assert (await ask(region.gateway, HI))[0] == 200
    region.engine.pause = 0.05
    assert (await ask(region.gateway, {**HI, "max_tokens": 20}))[0] == 200
    client = await connect(region.gateway)
    client.writer.write(post({**STREAM, "max_tokens": tokens}))
    await client.read_head()
    region.calls.clear()


async def until_heard(home: Region) -> None:
    """The home gateway knows the peer's queues."""
    await home.gateway.until("tidewheel_peer_up", 1, region="away", seconds=60)


async def test_what_would_wait_here_is_served_there_and_looks_the_same(
    start_region: StartRegion, connect: Connect
) -> None:
    away = await start_region("away", SmallEngine(), weights={"v1": 5000, "v2": 5000})
    home = await start_region("home", SmallEngine(), "--peers", f"away={away.gateway.url}")
    await make_busy(home, connect)
    await until_heard(home)
    status, headers, body = await ask(home.gateway, STREAM, "x-resumable: true")
    assert status == 200
    assert text_of(body) == whole_text(20)
    assert numbers_of(body) == list(range(1, len(numbers_of(body)) + 1))
    assert b"token_ids" not in body
    assert headers["x-tidewheel-version"] == "v1"
    assert await home.gateway.value("tidewheel_requests_spilled_total", region="away") == 1
    assert away.lanes() == ["free"]
    assert home.lanes() == []
    assert await away.gateway.value("tidewheel_requests_total", version="v1", code_class="2xx") == 1
    again = await fetch(home.gateway, f"/v1/replies/{headers['x-tidewheel-reply']}/events")
    assert again[2] == body, "its log is where it was asked for"
    whole = orjson.loads((await ask(home.gateway, {**HI, "max_tokens": 4}))[2])
    assert whole["choices"][0]["message"]["content"] == whole_text(4)


async def test_a_region_lost_in_mid_reply_is_carried_on_at_home(start_region: StartRegion, connect: Connect) -> None:
    away = await start_region("away", SmallEngine(break_after=7), "--continuation-wait", "0.05")
    home = await start_region("home", SmallEngine(), "--peers", f"away={away.gateway.url}")
    await make_busy(home, connect, tokens=60)
    await until_heard(home)
    status, _, body = await ask(home.gateway, STREAM)
    assert status == 200
    assert text_of(body) == whole_text(20)
    assert await home.gateway.value("tidewheel_requests_spilled_total", region="away") in (None, 0)
    assert away.lanes() == ["free"]


async def test_there_is_one_hop(start_region: StartRegion, connect: Connect) -> None:
    """What came from a peer waits, although another peer has room."""
    away = await start_region("away", SmallEngine())
    home = await start_region("home", SmallEngine(), "--peers", f"away={away.gateway.url}")
    await make_busy(home, connect, tokens=60)
    await until_heard(home)
    body = orjson.dumps({**STREAM, "model": "default/chat"})
    ticket = SpillTicket("third", time.time(), "req-1", "alice", "free", False, "v1", body_hash(body))
    status, headers, answer = await ask(home.gateway, body, f"x-tidewheel-spill: {Signer(KEY).sign(ticket).decode()}")
    assert status == 200
    assert text_of(answer) == whole_text(20)
    assert headers["x-tidewheel-resumable"] == "false"
    assert home.lanes() == ["free"]
    assert away.lanes() == []


async def test_who_has_not_the_key_is_no_peer(start_region: StartRegion) -> None:
    home = await start_region("home", SmallEngine())
    status, _, body = await ask(home.gateway, STREAM, "x-tidewheel-spill: e30.00")
    assert (status, orjson.loads(body)["error"]["code"]) == (403, "spill_refused")
    assert (await fetch(home.gateway, "/peers/waits"))[0] == 404
    assert (await fetch(home.gateway, "/peers/waits", "x-tidewheel-spill: e30.00"))[0] == 403


async def test_a_peer_that_is_away_changes_nothing(start_region: StartRegion, connect: Connect) -> None:
    home = await start_region("home", SmallEngine(), "--peers", "away=http://127.0.0.1:9")
    assert text_of((await ask(home.gateway, STREAM))[2]) == whole_text(20)
