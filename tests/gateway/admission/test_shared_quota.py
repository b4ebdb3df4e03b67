"""Quotas of several gateways over one real redis-server: exact, bounded overshoot, and honest when it is away."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.programs import running_inside, table, write_routing
from tests.gateway.upstreams import hangs, running_upstream
from tests.gateway.wire import HI, open_client, post
from tests.waiting import PATIENCE_SECONDS

from tidewheel.cli.cluster.addresses import free_ports
from tidewheel.gateway.admission.quota import Limit, Quota, QuotaAwayError, Reservation, Shortage
from tidewheel.gateway.admission.shared_quota import SharedBuckets

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(
        shutil.which("redis-server") is None, reason="redis-server is not installed (apt: redis-server)"
    ),
]

TOKENS = Limit(("tokens", "alice"), "tokens", 1000.0, 10.0)
REQUESTS = Limit(("requests", "alice"), "requests", 10.0, 1.0)


class RedisServer:
    """A server of its own, and the one command that the quota needs."""

    def __init__(self, folder: Path) -> None:
        [self.port] = free_ports(1)
        self.folder = folder
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *("redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", str(self.folder)),
            stdout=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await self.command("PING")
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    return

    async def stop(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        await self.process.wait()

    async def evaluate(self, script: str, keys: Sequence[str], arguments: Sequence[str]) -> Any:
        return await self.command("EVAL", script, str(len(keys)), *keys, *arguments)

    async def command(self, *words: str) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            parts = [b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words]
            writer.write(b"*%d\r\n%s" % (len(words), b"".join(parts)))
            return await _read(reader)
        finally:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> Any:
    line = (await reader.readuntil(b"\r\n"))[:-2]
    kind, rest = line[:1], line[1:]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else (await reader.readexactly(int(rest) + 2))[:-2]
    if kind == b"*":
        return [await _read(reader) for _ in range(int(rest))]
    return rest


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    server = RedisServer(tmp_path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def gateways(redis: RedisServer, count: int, *, lease_share: float = 0.02, timeout: float = 5.0) -> list[Quota]:
    clock = asyncio.get_running_loop().time
    return [
        Quota(SharedBuckets(redis.evaluate, timeout=timeout), clock=clock, lease_share=lease_share)
        for _ in range(count)
    ]


async def test_gateways_together_admit_one_capacity_and_their_leases(redis: RedisServer) -> None:
    quotas = gateways(redis, 3)
    answers = await asyncio.gather(*[quotas[number % 3].reserve([(TOKENS, 30.0)]) for number in range(150)])
    began = sum(isinstance(answer, Reservation) for answer in answers) * 30.0
    assert 1000 - 3 * 50 <= began <= 1000 + 3 * 20 + 100


async def test_all_counters_or_none(redis: RedisServer) -> None:
    (quota,) = gateways(redis, 1, lease_share=0.0)
    assert isinstance(await quota.reserve([(TOKENS, 900.0), (REQUESTS, 1.0)]), Reservation)
    refused = await quota.reserve([(REQUESTS, 1.0), (TOKENS, 900.0)])
    assert isinstance(refused, Shortage)
    assert refused.limit.unit == "tokens"
    assert 70 < refused.wait <= 80
    assert isinstance(await quota.reserve([(REQUESTS, 9.0)]), Reservation), "the refused one took no request"


async def test_a_refund_is_seen_by_the_other_gateways(redis: RedisServer) -> None:
    one, other = gateways(redis, 2, lease_share=0.0)
    held = await one.reserve([(TOKENS, 1000.0)])
    assert isinstance(held, Reservation)
    assert isinstance(await other.reserve([(TOKENS, 500.0)]), Shortage)
    held.settle(100.0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not isinstance(await other.reserve([(TOKENS, 500.0)]), Reservation):
            await asyncio.sleep(0.02)


async def test_a_store_that_hangs_or_died_is_away_and_one_that_comes_back_empty_serves(redis: RedisServer) -> None:
    (quota,) = gateways(redis, 1, lease_share=0.0, timeout=0.3)
    held = await quota.reserve([(TOKENS, 100.0)])
    assert isinstance(held, Reservation)
    assert redis.process is not None
    redis.process.send_signal(signal.SIGSTOP)
    with pytest.raises(QuotaAwayError):
        await quota.reserve([(TOKENS, 100.0)])
    held.settle(10.0)  # a refund that is lost costs nobody a request
    redis.process.send_signal(signal.SIGCONT)
    await redis.stop()
    with pytest.raises(QuotaAwayError):
        await quota.reserve([(TOKENS, 100.0)])
    await redis.start()
    assert isinstance(await quota.reserve([(TOKENS, 1000.0)]), Reservation)


async def test_two_gateways_refuse_together_what_one_would(redis: RedisServer, tmp_path: Path) -> None:
    tiers = {"free": {"tokensPerMinute": 60, "burstTokens": 600, "maxOutputTokens": 100}}
    async with running_upstream(hangs) as upstream:
        routing = write_routing(
            tmp_path / "routing.json",
            [table(weights={"v1": 10_000}, tiers=tiers)],
            {"default/chat-v1": [upstream.address]},
        )
        arguments = ("--static", str(routing), "--redis-url", f"redis://127.0.0.1:{redis.port}/0")
        async with running_inside(*arguments) as one, running_inside(*arguments) as other:
            clients = [await open_client(gateway) for gateway in (one, other) * 5]
            for client in clients:
                client.writer.write(post({**HI, "stream": False}))
            for gateway in (one, other):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not await gateway.value("tidewheel_requests_total", code_class="4xx"):
                        await asyncio.sleep(0.05)
            assert 3 <= len(upstream.calls) <= 5, "600 tokens at about 120 each, whichever gateway is asked"
            for client in clients:
                await client.close()
