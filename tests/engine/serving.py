"""A real HTTP server around a tiny engine, inside the test's own process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import uvicorn
from tests.waiting import PATIENCE_SECONDS

from tidewheel.engine.api import create_app
from tidewheel.engine.assembly import build_scheduler
from tidewheel.engine.engine import Engine
from tidewheel.engine.faults import Faults
from tidewheel.engine.lifecycle import EngineServer
from tidewheel.engine.metrics import Metrics
from tidewheel.engine.runner import Runner
from tidewheel.engine.service import Dispatcher, Service
from tidewheel.engine.settings import Settings
from tidewheel.engine.simulated import StepTime, simulated_runner
from tidewheel.engine.tokenizer import ModelTokenizer
from tidewheel.engine.tracing import tracing_of

MODEL = "demo"
SETTINGS = Settings(model=MODEL, runner="simulated", kv_memory=64 << 20, max_model_len=512, prefix_seed="test")


@dataclass
class Client:
    service: Service
    session: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(path, data=data, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith(("{", "[")) else text, response.headers

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(path, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def chat(self, content: str = "hello", **fields: Any) -> tuple[int, Any]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4} | fields
        status, document, _ = await self.post("/v1/chat/completions", body)
        return status, document

    async def complete(self, prompt: Any = "hello", **fields: Any) -> tuple[int, Any]:
        status, document, _ = await self.post("/v1/completions", {"model": MODEL, "prompt": prompt} | fields)
        return status, document

    async def stream(self, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
        """The events of a stream; the last one is the string [DONE]."""
        prompt = (
            {"prompt": "hello"}
            if path.endswith("/completions") and "chat" not in path
            else {"messages": [{"role": "user", "content": "hello"}]}
        )
        body = {"model": MODEL, "max_tokens": 4, "stream": True} | prompt | fields
        async with self.session.post(path, json=body) as response:
            assert response.status == 200, await response.text()
            return parse_events((await response.read()).decode())

    async def until_idle(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.service.engine.has_work or self.service.num_open:
                await asyncio.sleep(0.005)
        self.service.engine.scheduler.check()


def parse_events(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    events = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        assert event.startswith("data: ")
        assert "\n" not in event
        data = event.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


@asynccontextmanager
async def serving(
    *,
    runner: Runner | None = None,
    tokenizer: ModelTokenizer | None = None,
    token: str | None = None,
    faults: tuple[str, ...] = (),
    warm: bool = True,
    **changes: Any,
) -> AsyncIterator[Client]:
    settings = replace(SETTINGS, **changes)
    parsed = Faults.parse(faults)
    step_time = StepTime.parse(changes.get("step_time", "0,0,0"))
    simulated, simulated_text = simulated_runner(settings, step_time=step_time, faults=parsed)
    used: Runner = runner or simulated
    scheduler = build_scheduler(settings, used)
    metrics = Metrics(model_name=MODEL, scheduler=scheduler)
    engine = Engine(
        runner=used,
        scheduler=scheduler,
        deliver=Dispatcher(asyncio.get_running_loop(), metrics.on_outputs),
        on_step=lambda step, seconds: metrics.on_step(step, scheduler),
    )
    service = Service(
        engine=engine, tokenizer=tokenizer or simulated_text, settings=settings, metrics=metrics,
        model_names=[MODEL], faults=parsed, tracing=tracing_of(settings, model=MODEL),
    )  # fmt: skip
    app = create_app(service, tokens=None if token is None else lambda: (token,), version="test")
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
    )
    server = EngineServer(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine.start()
        running = asyncio.create_task(server.serve(sockets=[listener]))
        if warm:
            await service.warm_up()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with aiohttp.ClientSession(url, headers=headers) as session:
                yield Client(service, session, url)
        finally:
            server.should_exit = True
            await running
            engine.stop(timeout=1.0)
