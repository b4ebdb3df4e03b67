"""The program as the image runs it: a process that starts, drains and explains itself."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import openai
import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import Gateway, run_program, table, write_routing
from tests.gateway.sse_events import event_payloads
from tests.gateway.upstreams import DONE, Call, chat_event, hangs, pauses, says
from tests.gateway.wire import HI, ask, post
from tests.waiting import PATIENCE_SECONDS

from tidewheel.gateway.program import Program
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.static import StaticRouting

pytestmark = pytest.mark.component

STREAM = {**HI, "stream": True}


async def until_refused(gateway: Gateway) -> None:
    """Wait until nobody listens on the data port."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
            except ConnectionRefusedError:
                return
            writer.transport.abort()
            await asyncio.sleep(0.02)


async def one_then_silence(call: Call) -> None:
    call.begin_stream()
    call.chunk(chat_event("one"))
    await hangs(call)


async def test_the_openai_client_streams_through_a_gateway_process(
    start_upstream: StartUpstream, serve_process: StartGateway, client_of: Callable[..., openai.AsyncOpenAI]
) -> None:
    client = client_of(await serve_process({"v1": [await start_upstream(says("one two three"))]}))
    stream = await client.chat.completions.create(model="chat", messages=[], stream=True)
    words = [chunk.choices[0].delta.content async for chunk in stream]
    assert [word for word in words if word] == ["one", "two", "three"]


async def test_sigterm_lets_streams_end_and_new_requests_in_for_a_moment(
    start_upstream: StartUpstream, serve_process: StartGateway, connect: Connect
) -> None:
    go_on = asyncio.Event()
    upstream = await start_upstream(pauses(go_on))
    gateway = await serve_process({"v1": [upstream]}, "--accept-after-sigterm", "0.5")
    client = await connect(gateway)
    client.writer.write(post(STREAM))
    await client.read_head()
    gateway.process.terminate()
    await gateway.wait_for_log("draining")
    assert (await gateway.get("/readyz"))[0] == 503
    status, headers, _ = await ask(gateway, {**HI, "model": "nope"})
    assert (status, headers["connection"]) == (404, "close")
    await until_refused(gateway)
    assert (await gateway.get("/routing/default/chat", admin=True))[0] == 200
    go_on.set()
    assert (await client.read_body({"transfer-encoding": "chunked"})).endswith(DONE)
    assert await asyncio.wait_for(gateway.process.wait(), PATIENCE_SECONDS) == 0


async def test_at_the_end_of_the_drain_open_streams_are_told(
    start_upstream: StartUpstream, serve_process: StartGateway, connect: Connect
) -> None:
    gateway = await serve_process(
        {"v1": [await start_upstream(one_then_silence)]}, "--accept-after-sigterm", "0", "--drain-timeout", "0.1"
    )
    client = await connect(gateway)
    client.writer.write(post(STREAM))
    _, headers = await client.read_head()
    await client.read_chunk()
    gateway.process.terminate()
    body = await client.read_body(headers)
    assert orjson.loads(event_payloads(body)[-1])["error"]["code"] == "shutting_down"
    assert await asyncio.wait_for(gateway.process.wait(), PATIENCE_SECONDS) == 0


async def test_settings_that_cannot_work_end_the_program_with_a_sentence(tmp_path: Path) -> None:
    code, output = await run_program("--static", str(tmp_path / "nowhere.json"))
    assert code == 2
    assert "nowhere.json" in output
    assert "Traceback" not in output


async def test_a_defect_in_following_routing_drains_instead_of_cutting_streams(
    start_upstream: StartUpstream, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()

    async def run(self: StaticRouting) -> None:
        self._publish(self._first)
        await broken.wait()
        raise RuntimeError("a defect")

    monkeypatch.setattr(StaticRouting, "run", run)
    go_on = asyncio.Event()
    upstream = await start_upstream(pauses(go_on))
    ends = {"default/chat-v1": [upstream.address]}
    path = write_routing(tmp_path / "routing.json", [table(weights={"v1": 10_000})], ends)
    ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--accept-after-sigterm", "0"]
    program = Program(Settings.from_arguments([*ports, "--static", str(path)]))
    gateway = Gateway(**await program.start())
    serving = asyncio.ensure_future(program.serve_until(asyncio.get_running_loop().create_future()))
    await gateway.until_ready()
    client = await connect(gateway)
    client.writer.write(post(STREAM))
    await client.read_head()
    broken.set()
    await until_refused(gateway)
    go_on.set()
    assert (await client.read_body({"transfer-encoding": "chunked"})).endswith(DONE)
    with pytest.raises(RuntimeError, match="a defect"):
        await serving
