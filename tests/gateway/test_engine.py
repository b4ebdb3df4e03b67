"""The gateway in front of the real engine program with its simulated runner."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway
from tests.gateway.programs import Gateway, table, write_routing
from tests.gateway.sse_events import event_payloads
from tests.gateway.wire import HI, ask, post
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.component

TOKEN = "engine-secret"
MESSAGES: Any = [{"role": "user", "content": "Why is the sky blue?"}]


@dataclass
class Engine:
    """A running ``python -m tidewheel.engine``."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def call(self, path: str, *, method: str = "GET") -> dict[str, Any]:
        """One of the engine's own endpoints."""
        request = urllib.request.Request(
            f"http://{self.address}{path}", method=method, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            body: dict[str, Any] = json.loads(answer.read())
            return body


def start_engine(token_file: Path) -> Engine:
    """One engine, ready."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tidewheel.engine", "--model", "smollm2", "--runner", "simulated"),
            *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "chat", "--log-level", "error"),
            *("--api-token-file", str(token_file), "--accept-after-sigterm", "0", "--step-time", "20,0,0"),
        ],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with suppress(OSError, urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1).close()
            return Engine(port, process)
        assert process.poll() is None, "the engine ended while starting"
        time.sleep(0.05)
    process.kill()
    raise TimeoutError("the engine was not ready in time")


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    """Two engines, for all tests of this module."""
    with tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder) / "token"
        token_file.write_text(TOKEN)
        started = [start_engine(token_file) for _ in range(2)]
        try:
            yield started
        finally:
            for engine in started:
                engine.process.kill()
                engine.process.wait()


@pytest.fixture
def in_front(start: StartGateway, tmp_path: Path) -> Callable[..., Any]:
    """Starts a gateway in front of engines."""

    async def start_one(*engines: Engine, arguments: tuple[str, ...] = ()) -> Gateway:
        token = tmp_path / "token"
        token.write_text(TOKEN)
        ends = {"default/chat-v1": [engine.address for engine in engines]}
        path = write_routing(tmp_path / "routing.json", [table(weights={"v1": 10_000})], ends)
        return await start("--static", str(path), "--engine-token-file", str(token), *arguments)

    return start_one


async def until_idle(engine: Engine, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the engine runs and queues nothing."""
    async with asyncio.timeout(seconds):
        while True:
            load = await asyncio.to_thread(engine.call, "/load")
            if load["running"] == load["waiting"] == 0:
                return
            await asyncio.sleep(0.01)


async def test_the_openai_client_talks_to_the_engine_through_the_gateway(
    engines: list[Engine], in_front: Callable[..., Any], client_of: Callable[..., openai.AsyncOpenAI]
) -> None:
    client = client_of(await in_front(*engines))
    whole = await client.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=8, temperature=0, seed=1)
    stream = await client.chat.completions.create(
        model="default/chat",
        messages=MESSAGES,
        max_tokens=8,
        temperature=0,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    completion = await client.completions.create(model="chat", prompt="Once", max_tokens=4)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 4
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=-1)
    assert caught.value.body["type"] == "invalid_request_error"  # type: ignore[index]


async def test_tokens_are_counted_as_the_engine_counts_them(
    engines: list[Engine], in_front: Callable[..., Any]
) -> None:
    gateway = await in_front(engines[0])
    body = {**HI, "stream": True, "max_tokens": 6}
    payloads = event_payloads((await ask(gateway, {**body, "stream_options": {"include_usage": True}}))[2])
    usage = orjson.loads(payloads[-2])["usage"]
    await gateway.until("tidewheel_offered_tokens_total", usage["completion_tokens"], kind="output")
    assert await gateway.value("tidewheel_offered_tokens_total", kind="prompt") == usage["prompt_tokens"]
    await ask(gateway, body)  # without usage: one token an event
    await gateway.until("tidewheel_offered_tokens_total", 12, kind="output")
    assert await gateway.value("tidewheel_ttft_seconds_count") == 2


async def test_a_client_that_goes_away_frees_the_engine_s_slot(
    engines: list[Engine], in_front: Callable[..., Any], connect: Connect
) -> None:
    gateway = await in_front(engines[0])
    for stream in (True, False):
        client = await connect(gateway)
        client.writer.write(post({**HI, "stream": stream, "max_tokens": 1500}))
        if stream:
            await client.read_head()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await asyncio.to_thread(engines[0].call, "/load"))["running"]:
                await asyncio.sleep(0.005)
        await client.close()
        await until_idle(engines[0], seconds=2.0)  # 1,500 tokens would take 30 s
    await gateway.until("tidewheel_in_flight", 0)


async def test_a_draining_engine_ends_its_streams_and_gets_no_new_work(
    engines: list[Engine], in_front: Callable[..., Any], connect: Connect, tmp_path: Path
) -> None:
    leaving = start_engine(write_token(tmp_path))
    try:
        gateway = await in_front(leaving)
        client = await connect(gateway)
        client.writer.write(post({**HI, "stream": True, "max_tokens": 40}))
        _, headers = await client.read_head()
        ends = {"default/chat-v1": [leaving.address, engines[0].address]}
        write_routing(tmp_path / "routing.json", [table(weights={"v1": 10_000}, generation=2)], ends)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await gateway.get("/routing/default/chat", admin=True))[1]["generation"] != 2:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(leaving.call, "/drain", method="POST")
        for _ in range(10):
            assert (await ask(gateway, {**HI, "max_tokens": 2}))[0] == 200
        payloads = event_payloads(await client.read_body(headers))
        assert payloads[-1] == b"[DONE]"
        assert len(payloads) >= 40
        assert await gateway.value("tidewheel_request_errors_total") == 0
    finally:
        leaving.process.kill()
        leaving.process.wait()


def text_of(body: bytes) -> str:
    """What a client would show of a stream."""
    chunks = [orjson.loads(data) for data in event_payloads(body) if data != b"[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def write_token(folder: Path) -> Path:
    path = folder / "engine-token"
    path.write_text(TOKEN)
    return path


async def test_an_engine_killed_in_mid_stream_is_replaced_unseen(
    engines: list[Engine], in_front: Callable[..., Any], connect: Connect, tmp_path: Path
) -> None:
    victim = start_engine(write_token(tmp_path))
    try:
        gateway = await in_front(victim, engines[0], arguments=("--affinity-allowance-tokens", "1"))
        clients = [await connect(gateway) for _ in range(2)]
        for client in clients:  # least loaded: one each
            client.writer.write(post({**HI, "stream": True, "max_tokens": 60}))
            await client.read_head()
        victim.process.kill()
        bodies = [await client.read_body({"transfer-encoding": "chunked"}) for client in clients]
        assert bodies[0].replace(b"\r", b"").count(b"id: ") == bodies[1].count(b"id: ") == 63
        assert text_of(bodies[0]) == text_of(bodies[1]), "made-up text depends on the tokens before it alone"
        for _ in range(10):
            assert (await ask(gateway, {**HI, "max_tokens": 2}))[0] == 200
        assert await gateway.value("tidewheel_request_errors_total") == 0
        assert await gateway.value("tidewheel_streams_resumed_total", cause="replica") == 1
        await gateway.until("tidewheel_in_flight", 0)
    finally:
        victim.process.kill()
        victim.process.wait()
