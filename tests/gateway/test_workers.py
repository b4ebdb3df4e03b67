"""Several worker processes behind one port, fed by one parent."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import Gateway, GatewayProcess, table, write_routing
from tests.gateway.upstreams import DONE, hangs, pauses, says
from tests.gateway.wire import HI, ask, post
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.component

STREAM = {**HI, "stream": True}
ARGUMENTS = ("--workers", "2", "--worker-restart-seconds", "0.05", "--accept-after-sigterm", "0")


def children(process: int) -> set[int]:
    """Process ids of the workers."""
    return {int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()}


async def until_obeyed(gateway: Gateway, generation: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            status, body = await gateway.get("/routing/default/chat", admin=True)
            if status == 200 and body["generation"] == generation:
                return
            await asyncio.sleep(0.02)


async def test_workers_share_the_port_the_snapshot_and_the_metrics(
    start_upstream: StartUpstream, serve_process: StartGateway, tmp_path: Path
) -> None:
    upstreams = {version: [await start_upstream(says(version))] for version in ("v1", "v2")}
    gateway = await serve_process(
        upstreams, *ARGUMENTS, "--static-poll-seconds", "0.02", weights={"v1": 10_000, "v2": 0}
    )
    await until_obeyed(gateway, 1)
    for _ in range(30):
        assert (await ask(gateway, HI))[1]["x-tidewheel-version"] == "v1"
    assert await gateway.value("tidewheel_requests_total", version="v1", code_class="2xx") == 30
    assert await gateway.value("tidewheel_requests_total", version="v2") == 0
    assert len({(entry.get("request_id")) for entry in gateway.logs if entry["msg"] == "request"}) == 30
    ends = {f"default/chat-{version}": [ups[0].address] for version, ups in upstreams.items()}
    write_routing(tmp_path / "routing.json", [table(weights={"v1": 0, "v2": 10_000}, generation=2)], ends)
    await until_obeyed(gateway, 2)  # which is said only when every worker obeys
    for _ in range(30):
        assert (await ask(gateway, HI))[1]["x-tidewheel-version"] == "v2"
    assert await gateway.value("tidewheel_routing_generation") == 2


async def test_a_worker_that_dies_is_replaced_and_no_connection_in_its_queue_is_lost(
    start_upstream: StartUpstream, serve_process: StartGateway
) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve_process({"v1": [upstream]}, *ARGUMENTS)
    assert isinstance(gateway, GatewayProcess)
    await until_obeyed(gateway, 1)
    for _ in range(10):
        assert (await ask(gateway, HI))[0] == 200
    assert await gateway.value("tidewheel_requests_total", code_class="2xx") == 10
    before = children(gateway.process.pid)
    assert len(before) == 2
    for victim in before:
        os.kill(victim, signal.SIGKILL)
    statuses = [status for status, *_ in await asyncio.gather(*[ask(gateway, HI) for _ in range(20)])]
    assert set(statuses) == {200}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(children(gateway.process.pid)) < 2:
            await asyncio.sleep(0.02)
    assert not children(gateway.process.pid) & before
    await until_obeyed(gateway, 1)
    # What the dead had reported is not forgotten.
    assert await gateway.value("tidewheel_requests_total", code_class="2xx") == 30
    assert await gateway.value("tidewheel_in_flight") == 0


async def test_sigterm_drains_the_workers(
    start_upstream: StartUpstream, serve_process: StartGateway, connect: Connect
) -> None:
    go_on = asyncio.Event()
    gateway = await serve_process({"v1": [await start_upstream(pauses(go_on))]}, *ARGUMENTS)
    assert isinstance(gateway, GatewayProcess)
    await until_obeyed(gateway, 1)
    clients = [await connect(gateway) for _ in range(6)]
    for client in clients:
        client.writer.write(post(STREAM))
        await client.read_head()
    gateway.process.terminate()
    await gateway.wait_for_log("draining")
    go_on.set()
    for client in clients:
        assert (await client.read_body({"transfer-encoding": "chunked"})).endswith(DONE)
    assert await asyncio.wait_for(gateway.process.wait(), PATIENCE_SECONDS) == 0


async def test_workers_do_not_outlive_a_parent_that_was_killed(
    start_upstream: StartUpstream, serve_process: StartGateway
) -> None:
    gateway = await serve_process({"v1": [await start_upstream(hangs)]}, *ARGUMENTS)
    assert isinstance(gateway, GatewayProcess)
    workers = children(gateway.process.pid)
    gateway.process.kill()
    await gateway.process.wait()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(Path(f"/proc/{worker}").exists() for worker in workers):
            await asyncio.sleep(0.02)


async def test_a_worker_that_hangs_is_replaced(start_upstream: StartUpstream, serve_process: StartGateway) -> None:
    gateway = await serve_process({"v1": [await start_upstream(says("hi"))]}, *ARGUMENTS, "--worker-silence", "2")
    assert isinstance(gateway, GatewayProcess)
    await until_obeyed(gateway, 1)
    before = children(gateway.process.pid)
    os.kill(min(before), signal.SIGSTOP)
    await gateway.wait_for_log("a worker hangs", worker=min(before))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(children(gateway.process.pid) - {min(before)}) < 2:
            await asyncio.sleep(0.02)
    for _ in range(20):
        assert (await ask(gateway, HI))[0] == 200
