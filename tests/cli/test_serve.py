"""`tidewheel serve` and `tidewheel chat` as they are installed, with the simulated runner."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from tidewheel.cli.cluster.procfs import all_processes, environment_value, is_running
from tidewheel.cli.serve.programs import free_port

pytestmark = pytest.mark.component
TIDEWHEEL = Path(sys.executable).with_name("tidewheel")
MARK = "TIDEWHEEL_SERVE_TEST"


class Serving:
    """A running `tidewheel serve`; its programs are found by a mark in their environment."""

    def __init__(self, folder: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port() or 0
        self.mark = str(folder)
        self.output = folder / "output"
        with self.output.open("wb") as output:
            # A test run in the background of a shell ignores Ctrl-C, and so would everything that it starts.
            self.process = subprocess.Popen(
                ["env", "--default-signal=INT", TIDEWHEEL, "serve", *arguments, "--port", str(self.port)],
                stdout=output,
                stderr=output,
                env={**os.environ, MARK: self.mark, "TMPDIR": str(folder)},
            )

    @property
    def said(self) -> str:
        return self.output.read_text()

    def pids(self, word: str = "tidewheel.") -> list[int]:
        marked = [p for p in all_processes() if environment_value(p.pid, MARK) == self.mark and is_running(p)]
        return [p.pid for p in marked if p.pid != self.process.pid and word in _command_line(p.pid)]

    async def is_served(self) -> None:
        await eventually(lambda: "is served at" in self.said or self.process.poll() is not None, within_seconds=60)
        assert "is served at" in self.said, self.said

    async def is_gone(self) -> None:
        await eventually(lambda: not self.pids(), within_seconds=20, what="no engine and no gateway")


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: bytes = answer.read()
        return body


def chat(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([TIDEWHEEL, "chat", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    running = Serving(tmp_path, "smollm2", "--runner", "simulated")
    yield running
    running.process.kill()
    running.process.wait()


async def test_it_serves_until_ctrl_c_and_leaves_nothing(serving: Serving) -> None:
    await serving.is_served()
    url = f"http://127.0.0.1:{serving.port}"
    assert b"smollm2" in get(f"{url}/v1/models")
    talk = chat("--url", url, "Hello", "--max-tokens", "5")
    assert talk.returncode == 0, talk.stderr
    assert talk.stdout.strip()
    assert "5 tokens" in talk.stderr
    assert len(serving.pids()) == 2
    serving.process.send_signal(signal.SIGINT)
    assert serving.process.wait(20) == 0
    await serving.is_gone()


async def test_its_programs_never_outlive_it(serving: Serving) -> None:
    await serving.is_served()
    serving.process.kill()
    await serving.is_gone()


async def test_an_engine_that_dies_is_reported_and_ends_the_gateway(serving: Serving) -> None:
    await serving.is_served()
    for pid in serving.pids("tidewheel.engine"):
        os.kill(pid, signal.SIGKILL)
    assert serving.process.wait(20) == 1
    assert "the engine was ended by signal 9" in serving.said
    await serving.is_gone()


async def test_an_engine_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    running = Serving(tmp_path, str(tmp_path / "absent.gguf"))
    assert running.process.wait(120) == 1
    assert "the engine ended with status 3" in running.said
    assert "absent.gguf" in running.said
    assert "Traceback" not in running.said
    await running.is_gone()


async def test_a_taken_port_is_stepped_over_and_said(serving: Serving, tmp_path: Path) -> None:
    await serving.is_served()
    folder = tmp_path / "second"
    folder.mkdir()
    second = Serving(folder, "smollm2", "--runner", "simulated", port=serving.port)
    try:
        await second.is_served()
        assert f"port {serving.port} is taken; using" in second.said
    finally:
        second.process.kill()
        second.process.wait()


def test_nobody_to_talk_to_says_how_to_start_somebody() -> None:
    done = chat("--url", f"http://127.0.0.1:{free_port()}", "Hello")
    assert done.returncode == 1
    assert "tidewheel serve smollm2" in done.stderr
    assert "Traceback" not in done.stderr
