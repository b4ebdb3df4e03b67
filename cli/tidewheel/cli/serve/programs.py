"""Programs of ours that run as long as we do: started, awaited, and ended, however we end."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidewheel.cli.errors import ProgramError

_LAST_WORDS: Final = 12
_POLL_SECONDS: Final = 0.05
_PROBE_SECONDS: Final = 5.0


@dataclass(slots=True)
class Program:
    """A running ``python -m tidewheel.NAME`` and the file that it logs to."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def last_words(self) -> str:
        """The end of its log, for people: the message alone where a line is one of our JSON logs."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(it left no log)"
        return "\n".join(f"  {_readable(line)}" for line in lines[-_LAST_WORDS:]) or "  (it said nothing)"

    def check(self) -> None:
        """Raises ProgramError when it has ended."""
        code = self.process.poll()
        if code is not None:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            raise ProgramError(f"the {self.name} {how}. Its last words ({self.log}):\n{self.last_words()}")


def start(name: str, arguments: Sequence[str], *, log: Path) -> Program:
    """Starts ``python -m tidewheel.NAME``; it dies with this process, even if that is killed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [*_die_with_parent(), sys.executable, "-m", f"tidewheel.{name}", *arguments]
    with log.open("wb") as output:
        # A session of its own: Ctrl-C reaches us alone, and we end the programs in order.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    return Program(name, process, log)


def wait_ready(program: Program, *, port: int, path: str, timeout_seconds: float) -> None:
    """Returns once ``path`` answers 200; raises ProgramError if the program ends before or takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while not _answers(port, path):
        program.check()
        if time.monotonic() > deadline:
            raise ProgramError(
                f"the {program.name} was not ready after {timeout_seconds:.0f} s (--start-timeout). "
                f"Its last words ({program.log}):\n{program.last_words()}"
            )
        time.sleep(_POLL_SECONDS)


def stop(programs: Iterable[Program], *, timeout_seconds: float) -> None:
    """Asks each to end, all at once, and ends what has not after ``timeout_seconds``."""
    running = [program for program in programs if program.process.poll() is None]
    for program in running:
        program.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    for program in running:
        try:
            program.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            program.process.kill()
            program.process.wait()


def watch(programs: Sequence[Program], *, pause: Callable[[float], None] = time.sleep) -> None:
    """Never returns by itself; raises ProgramError as soon as one of them has ended."""
    while True:
        for program in programs:
            program.check()
        pause(0.2)


def free_port(host: str = "127.0.0.1", *, wanted: int = 0) -> int | None:
    """``wanted`` if nobody listens there, else None; with 0, some free port."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def _die_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig=KILL", "--"] if setpriv and os.name == "posix" else []


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PROBE_SECONDS)
    with closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return line[:400]
    return f"{entry.get('level', '')} {entry['msg']}".strip()[:400] if "msg" in entry else line[:400]
