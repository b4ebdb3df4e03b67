"""The real engine with SmolLM2 behind the real gateway, each a process, and two made-up engines for what it has not."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gateway.programs import table, write_routing
from tests.http_servers import QuietHandler, http_server
from tests.waiting import PATIENCE_SECONDS

from tidewheel.cli.cluster.waiting import answers_http, wait_until

TOOL_CALL = {"name": "weather", "arguments": '{"city": "Oslo"}'}
START_SECONDS = 240.0


@dataclass
class Served:
    """A gateway with the models ``chat`` (real), ``tools`` and ``flaky-*`` (made up)."""

    url: str
    engine: str
    calls: list[str] = field(default_factory=list)

    def load(self) -> dict[str, Any]:
        """What the real engine says of itself."""
        with urllib.request.urlopen(f"http://{self.engine}/load", timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def wait_until_idle(self) -> None:
        """The real engine runs nothing."""

        def is_idle() -> bool:
            load = self.load()
            return not (load["running"] or load["waiting"])

        wait_until(is_idle, what="the end of an aborted request", timeout_seconds=PATIENCE_SECONDS, poll_seconds=0.02)


def _chunk(model: str, **choice: Any) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model}
    return (
        b"data: " + json.dumps({**chunk, "choices": [{"index": 0, "finish_reason": None, **choice}]}).encode() + b"\n\n"
    )


def _tool_stream() -> bytes:
    """A call of a tool as engines stream it: the name first, then its arguments in pieces."""
    head = {"index": 0, "id": "call_1", "type": "function", "function": {"name": TOOL_CALL["name"], "arguments": ""}}
    pieces = [TOOL_CALL["arguments"][:7], TOOL_CALL["arguments"][7:]]
    calls = [head, *({"index": 0, "function": {"arguments": piece}} for piece in pieces)]
    chunks = [_chunk("tools", delta={"role": "assistant", "content": None})]
    chunks += [_chunk("tools", delta={"tool_calls": [call]}) for call in calls]
    return b"".join([*chunks, _chunk("tools", delta={}, finish_reason="tool_calls"), b"data: [DONE]\n\n"])


@contextmanager
def made_up_engine(calls: list[str]) -> Iterator[str]:
    """``tools`` calls a tool; a model ``flaky-*`` is overloaded once, and answers then. Yields its address."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            model = body["model"]
            calls.append(model)
            if model == "tools":
                self._send(200, "text/event-stream", _tool_stream())
            elif calls.count(model) == 1:
                error = {"message": "busy", "type": "server_error", "param": None, "code": "overloaded"}
                self._send(503, "application/json", json.dumps({"error": error}).encode())
            else:
                message = {"role": "assistant", "content": f"after {calls.count(model)} calls"}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                whole = {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
                self._send(200, "application/json", json.dumps(whole).encode())

        def do_GET(self) -> None:
            self._send(404, "application/json", b"{}")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_server(Handler) as url:
        yield url.removeprefix("http://")


@contextmanager
def program(log: Path, *command: str, until: str) -> Iterator[dict[str, Any]]:
    """A program of ours that logs into a file; yields the log line with this message."""
    with log.open("wb") as stderr, subprocess.Popen([sys.executable, "-m", *command], stderr=stderr) as process:
        try:
            yield _await_line(log, process, until)
        finally:
            process.kill()


def _await_line(log: Path, process: subprocess.Popen[bytes], message: str) -> dict[str, Any]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for line in log.read_bytes().splitlines():
            entry: dict[str, Any] = json.loads(line) if line.startswith(b"{") and line.endswith(b"}") else {}
            if entry.get("msg") == message:
                return entry
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise TimeoutError(f"the program did not say '{message}' in time: {log.read_text()}")


def _wait_for(url: str) -> None:
    wait_until(lambda: answers_http(url, timeout_seconds=60), what=f"an answer of {url}", timeout_seconds=START_SECONDS)


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Everything, ready."""
    calls: list[str] = []
    engine = ("tidewheel.engine", "--model", "smollm2", "--served-model-name", "chat", "--port", "0")
    small = ("--host", "127.0.0.1", "--kv-memory", "128Mi", "--max-model-len", "2048")
    with made_up_engine(calls) as made_up, program(folder / "engine.log", *engine, *small, until="serving") as started:
        models = {
            "chat": started["address"],
            "tools": made_up,
            **{f"flaky-{who}": made_up for who in ("python", "node")},
        }
        tables = [table(model, weights={"v1": 10_000}, uid=model) for model in models]
        ends = {f"default/{model}-v1": [address] for model, address in models.items()}
        static = write_routing(folder / "routing.json", tables, ends)
        _wait_for(f"http://{started['address']}/ready")
        gateway = (
            "tidewheel.gateway",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--admin-port",
            "0",
            "--static",
            str(static),
        )
        with program(folder / "gateway.log", *gateway, until="listening") as listening:
            url = f"http://127.0.0.1:{listening['data_port']}"
            _wait_for(f"{url}/readyz")
            yield Served(url, started["address"], calls)
