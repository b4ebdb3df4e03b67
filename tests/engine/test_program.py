"""`python -m tidewheel.engine` as Kubernetes sees it: exit codes, signals, last words."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.engine.serving import parse_events
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.component

NAME = "simulated/demo"
START_LIMIT = 200  # seconds; importing torch and compiling kernels on a busy machine, not a promise


@dataclass
class Program:
    process: asyncio.subprocess.Process
    session: aiohttp.ClientSession
    log: list[dict[str, Any]]

    async def ready(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                async with self.session.get("/ready") as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(0.02)

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait()

    def stream(self, **fields: Any) -> Any:
        body = {"model": NAME, "prompt": "x", "max_tokens": 40, "ignore_eos": True, "stream": True} | fields
        return self.session.post("/v1/completions", json=body)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidewheel.engine", "--model", "demo", "--runner", "simulated", *arguments]


@asynccontextmanager
async def running(*arguments: str, model: str | None = None) -> AsyncIterator[Program]:
    """The simulated engine, or a real one of `model`."""
    arguments = ("--port", "0", "--max-model-len", "2048", *arguments)
    real = [sys.executable, "-m", "tidewheel.engine", "--model", str(model), *arguments]
    process = await asyncio.create_subprocess_exec(
        *(command(*arguments) if model is None else real), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    log: list[dict[str, Any]] = []
    async with asyncio.timeout(START_LIMIT):
        while not log or log[-1]["msg"] != "serving":
            line = await process.stderr.readline()
            assert line, "the engine ended before it served"
            log.append(json.loads(line))

    async def collect(stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            log.append(json.loads(line))

    collecting = asyncio.create_task(collect(process.stderr))
    try:
        async with aiohttp.ClientSession(f"http://{log[-1]['address']}") as session:
            yield Program(process, session, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await collecting


async def start_and_fail(*arguments: str, cwd: Path | None = None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidewheel.engine", *arguments, stderr=asyncio.subprocess.PIPE, cwd=cwd
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_it_serves_and_says_that_it_is_simulated() -> None:
    async with running() as program:
        await program.ready()
        async with program.session.get("/v1/models") as response:
            (card,) = (await response.json())["data"]
        assert card["id"] == NAME
        async with program.stream(max_tokens=3) as response:
            events = parse_events((await response.read()).decode())
        assert "simulated" in events[0]["system_fingerprint"]
        assert any("SIMULATED" in line["msg"] for line in program.log)
        assert {"ts", "level", "logger", "msg"} <= program.log[0].keys()
        assert b"torch" not in Path(f"/proc/{program.process.pid}/maps").read_bytes()


async def test_a_real_model_answers() -> None:
    async with running("--kv-memory", "64Mi", model="smollm2") as program:
        await program.ready()
        question = {"role": "user", "content": "What is the capital of France?"}
        body = {"model": "smollm2", "messages": [question], "temperature": 0, "max_tokens": 20}
        async with program.session.post("/v1/chat/completions", json=body) as response:
            choice = (await response.json())["choices"][0]
        assert "Paris" in choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
        async with program.session.get("/load") as response:
            load = await response.json()
        assert (load["runner"], load["running"], load["free_blocks"]) == ("torch", 0, load["total_blocks"])
        loaded = next(line for line in program.log if line["msg"] == "model loaded")
        assert loaded["kernels"] == load["kernels"]
        program.process.send_signal(signal.SIGTERM)
        assert await program.exit_code() == 0


async def test_sigterm_lets_open_streams_finish_and_exits_0() -> None:
    """vllm#24885, sglang#1838."""
    async with running("--step-time", "20,0,0", "--accept-after-sigterm", "0.2") as program:
        await program.ready()
        async with program.stream() as response:
            await response.content.readany()
            program.process.send_signal(signal.SIGTERM)
            while True:
                async with program.session.get("/ready") as ready:
                    if ready.status == 503:
                        break
            async with program.stream(max_tokens=1) as early:
                assert early.status == 200  # endpoints are removed a moment after SIGTERM
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    async with program.stream(max_tokens=1) as late:
                        if late.status == 503:
                            assert late.headers["retry-after"] == "1"
                            break
                        await late.read()
            text = (await response.read()).decode()
        events = [e for e in text.split("\n\n") if e]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert await program.exit_code() == 0


async def test_the_shutdown_timeout_ends_streams_with_a_typed_error_and_exits_0() -> None:
    async with running("--step-time", "20,0,0", "--accept-after-sigterm", "0", "--shutdown-timeout", "0.3") as program:
        await program.ready()
        async with program.stream(max_tokens=1500) as response:
            await response.content.readany()
            program.process.send_signal(signal.SIGTERM)
            text = (await response.read()).decode()
        events = [e for e in text.split("\n\n") if e]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert await program.exit_code() == 0


async def test_a_second_signal_exits_at_once() -> None:
    async with running("--step-time", "20,0,0") as program:
        await program.ready()
        async with program.stream(max_tokens=1500) as response:
            await response.content.readany()
            program.process.send_signal(signal.SIGTERM)
            while not any(line["msg"] == "draining" for line in program.log):
                await asyncio.sleep(0.01)
            program.process.send_signal(signal.SIGTERM)
            assert await program.exit_code() == 130


async def test_sigterm_while_it_warms_up_ends_it_at_once_with_0() -> None:
    async with running("--fault", "start-delay:60") as program:
        async with program.session.get("/ready") as response:
            assert response.status == 503
        program.process.send_signal(signal.SIGTERM)
        assert await program.exit_code() == 0


async def test_sigterm_before_it_serves_ends_it_at_once() -> None:
    """0 once our handler is in place; before that the interpreter itself is still starting."""
    for delay in (0.0, 0.3):
        process = await asyncio.create_subprocess_exec(*command("--port", "0"), stderr=asyncio.subprocess.PIPE)
        await asyncio.sleep(delay)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            _, errors = await process.communicate()
        assert process.returncode in (0, -signal.SIGTERM)
        assert b"Traceback" not in errors


async def test_an_idle_engine_drains_as_soon_as_it_may() -> None:
    async with running("--accept-after-sigterm", "0") as program:
        await program.ready()
        program.process.send_signal(signal.SIGTERM)
        assert await program.exit_code() == 0


async def test_a_crash_at_a_token_kills_the_process() -> None:
    async with running("--fault", "crash:5") as program:
        await program.ready()
        # On a busy machine it may die before its first byte: then there is no reply that could break off.
        with pytest.raises(aiohttp.ClientError):
            async with program.stream() as response:
                await response.read()
        assert await program.exit_code() == -signal.SIGKILL


async def test_a_dead_step_loop_tells_open_streams_and_exits_1() -> None:
    async with running("--fault", "die:5", "--death-grace", "0.2") as program:
        await program.ready()
        async with program.stream() as response:
            text = (await response.read()).decode()
        assert '"code":"engine_dead"' in text
        assert text.endswith("data: [DONE]\n\n")
        assert await program.exit_code() == 1
        assert any("exception" in line for line in program.log)


async def test_a_hang_turns_health_red_and_stays_up() -> None:
    async with running("--fault", "hang:5", "--hang-timeout", "0.3") as program:
        await program.ready()
        async with program.stream() as response:
            await response.content.readany()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    async with program.session.get("/health") as health:
                        if health.status == 503:
                            break
                    await asyncio.sleep(0.02)
        assert program.process.returncode is None


async def test_not_ready_means_never_ready() -> None:
    async with running("--fault", "not-ready") as program:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(line["msg"] == "warmed up" for line in program.log):
                await asyncio.sleep(0.01)
        async with program.session.get("/ready") as response:
            assert response.status == 503


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/no/such/model.gguf"], "does not exist"),
        (["--model", "nothing"], "no such model"),
        (["--model", "file:///etc/hostname", "--runner", "simulated", "--sha256", "0" * 64], "its sha256 is"),
        (["--model", "/etc/hostname"], "not a readable GGUF file"),
        (["--model", "x", "--runner", "simulated", "--api-token-file", "/no/token"], "mount the Secret"),
        (["--model", "x", "--runner", "simulated", "--host", "203.0.113.1"], "Cannot listen"),
        (["--model", "x", "--runner", "simulated", "--step-time", "fast"], "--step-time"),
    ],
    ids=["no path", "no name", "wrong sha256", "no GGUF", "no token", "foreign address", "bad step time"],
)
async def test_a_start_that_cannot_succeed_exits_3_with_one_sentence(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    last_words = tmp_path / "termination-log"
    code, errors = await start_and_fail(*arguments, "--termination-log", str(last_words))
    assert code == 3
    assert words in last_words.read_text()
    assert last_words.read_text() in errors
    assert "Traceback" not in errors


async def test_a_crash_while_starting_exits_1_with_last_words(tmp_path: Path) -> None:
    last_words = tmp_path / "termination-log"
    code, _ = await start_and_fail(*command("--fault", "start-crash", "--termination-log", str(last_words))[3:])
    assert code == 1
    assert "start-crash" in last_words.read_text()


async def test_a_taken_port_is_named() -> None:
    async with running() as program:
        port = next(line["address"] for line in program.log if "address" in line).rsplit(":", 1)[1]
        code, errors = await start_and_fail(*command("--port", port)[3:])
        assert code == 3
        assert "choose another --port" in errors


async def test_the_first_line_of_the_log_comes_before_torch_could_be_loaded() -> None:
    """The simulated runner must start fast: nothing in it may import torch, transformers or numpy."""
    code = (
        "import sys, tidewheel.engine.server, tidewheel.engine.simulated;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'gguf', 'safetensors')))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=os.environ)
    assert await process.wait() == 0
