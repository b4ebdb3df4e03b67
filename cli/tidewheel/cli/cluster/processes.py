"""Processes that outlive the program that started them, recorded so that any later program can end exactly these.

The record is written just after the start; the moment between the two is covered by an environment variable that
marks every process of a cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidewheel.cli.cluster.errors import ComponentError, NotRunningError
from tidewheel.cli.cluster.procfs import (
    ProcessId,
    all_processes,
    children,
    end,
    environment_value,
    identify,
    is_running,
    reap,
    send,
)
from tidewheel.cli.cluster.waiting import wait_until

MARK = "TIDEWHEEL_CLUSTER"
# The new mount table follows the host's changes and shows it none of its own.
_NEW_NAMESPACES = ("unshare", "--mount", "--propagation=slave", "--net", "--pid", "--fork", "--mount-proc", "--")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a component, now or again after it was killed.

    `inside` names the component whose namespaces it joins (the init process of a sandbox); None is the host itself.
    With `new_namespaces` it becomes such an init process.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    inside: str | None = None
    new_namespaces: bool = False


@dataclass(frozen=True, slots=True)
class _Record:
    launch: Launch
    process: ProcessId


class ProcessTable:
    """The recorded processes of one cluster.

    With `die_with_parent` the kernel kills them when the thread that started them ends, however it ends.
    """

    def __init__(self, *, records: Path, logs: Path, mark: str, die_with_parent: bool = False) -> None:
        self._records = records
        self._logs = logs
        self._prefix = ["setpriv", "--pdeathsig=KILL", "--"] if die_with_parent else []
        self.mark = mark

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._records.glob("*.json"))

    def start(self, launch: Launch) -> ProcessId:
        """Start it, or do nothing when it runs already."""
        running = self.find(launch.name)
        if running is not None:
            return running
        process = self._spawn(launch)
        self._write(_Record(launch, process))
        return process

    def restart(self, name: str) -> ProcessId:
        """Start a recorded component again, in the way it was started before."""
        record = self._read(name)
        if record is None:
            raise NotRunningError(f"no component {name!r} in this cluster; it has: {', '.join(self.names()) or 'none'}")
        return self.start(record.launch)

    def find(self, name: str) -> ProcessId | None:
        """The running process of that name, if there is one."""
        record = self._read(name)
        return record.process if record is not None and is_running(record.process) else None

    def failure(self, name: str) -> ComponentError | None:
        """What to raise when the process has ended."""
        if self.find(name) is None:
            return ComponentError(f"{name} ended unexpectedly", log=self.log(name))
        return None

    def stop(self, name: str, *, sig: signal.Signals = signal.SIGTERM, timeout_seconds: float = 10) -> None:
        """Signal it and wait until it is gone; SIGKILL follows when it does not go in time."""
        process = self.find(name)
        if process is not None:
            end([process], sig=sig, timeout_seconds=timeout_seconds)

    def signal(self, name: str, sig: signal.Signals) -> None:
        process = self.find(name)
        if process is None:
            raise NotRunningError(f"component {name!r} is not running; recorded are: {', '.join(self.names())}")
        send(process, sig)

    def recorded(self) -> list[ProcessId]:
        found = (self.find(name) for name in self.names())
        return [process for process in found if process is not None]

    def marked(self) -> list[ProcessId]:
        """Every process on this machine that carries this cluster's mark, recorded or not."""
        return [process for process in all_processes() if environment_value(process.pid, MARK) == self.mark]

    def _spawn(self, launch: Launch) -> ProcessId:
        if launch.new_namespaces:
            return self._spawn_wrapped(launch, _NEW_NAMESPACES)
        if launch.inside is None:
            return self._identify(launch, self._posix_spawn(launch.name, [*self._prefix, *launch.argv], launch.env))
        holder = self.find(launch.inside)
        if holder is None:
            raise NotRunningError(f"{launch.name} cannot start: {launch.inside} of this cluster is not running")
        return self._spawn_wrapped(launch, enter(holder.pid))

    def _spawn_wrapped(self, launch: Launch, wrap: Sequence[str]) -> ProcessId:
        """Start it through unshare or nsenter, which fork once and then only wait: they are ended, the child stays."""
        wrapper = self._posix_spawn(launch.name, [*wrap, *launch.argv], launch.env)
        wait_until(
            lambda: any(_has_become(child, launch.argv[0]) for child in children(wrapper)),
            what=f"start of {launch.name}",
            timeout_seconds=10,
            poll_seconds=0.002,
            failed=lambda: None if identify(wrapper) else self._not_started(launch),
        )
        inner = self._identify(launch, children(wrapper)[0])
        os.kill(wrapper, signal.SIGKILL)
        os.waitpid(wrapper, 0)
        return inner

    def _identify(self, launch: Launch, pid: int) -> ProcessId:
        process = identify(pid)
        if process is None:
            reap(pid)
            raise self._not_started(launch)
        return process

    def _not_started(self, launch: Launch) -> ComponentError:
        return ComponentError(f"{launch.name} ended as soon as it was started", log=self.log(launch.name))

    def _posix_spawn(self, name: str, argv: list[str], env: Mapping[str, str]) -> int:
        environment = {"PATH": _PATH, "HOME": str(Path.home()), **env, MARK: self.mark}
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), log_flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            return os.posix_spawnp(argv[0], argv, environment, file_actions=actions, setsid=True)
        except OSError as error:
            raise ComponentError(f"{name} could not be started: {argv[0]}: {error.strerror}") from error

    def _write(self, record: _Record) -> None:
        path = self._path(record.launch.name)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(record), indent=1))
        temporary.rename(path)

    def _read(self, name: str) -> _Record | None:
        with contextlib.suppress(FileNotFoundError):
            content = json.loads(self._path(name).read_text())
            return _Record(Launch(**content["launch"]), ProcessId(**content["process"]))
        return None

    def _path(self, name: str) -> Path:
        return self._records / f"{name}.json"


def _has_become(pid: int, program: str) -> bool:
    """Whether the fork has gone through its exec; before that it would die with its wrapper, or run as it."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", shutil.which(program) or program)
    except OSError:
        return False


def enter(pid: int) -> list[str]:
    """The command that runs what follows it in the mount, network and process namespaces of a node."""
    return ["nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--"]
