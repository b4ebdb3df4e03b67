"""What the kernel says about processes, read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Index into the fields of /proc/PID/stat from `state` on, see proc_pid_stat(5).
_NUM_THREADS = 17


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A pid and the kernel's start time of its process (clock ticks since boot), because pids are reused."""

    pid: int
    started: int


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now; None when there is none, or only its unreaped remains.

    Its first thread is a zombie from the moment it ends; the process is gone, and its ports are free, only when its
    other threads have ended too.
    """
    fields = _stat_fields(pid)
    if fields is None or (fields[0] in "ZX" and int(fields[_NUM_THREADS]) < 2):
        return None
    return ProcessId(pid, int(fields[19]))


def is_running(process: ProcessId) -> bool:
    reap(process.pid)
    return identify(process.pid) == process


def all_processes() -> Iterator[ProcessId]:
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (process := identify(int(entry.name))) is not None:
            yield process


def children(pid: int) -> list[int]:
    """Pids of the children of every thread of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def environment_value(pid: int, variable: str) -> str | None:
    """A variable of the environment a process was started with; None also when we may not look."""
    prefix = f"{variable}=".encode()
    with contextlib.suppress(OSError):
        for entry in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            if entry.startswith(prefix):
                return entry[len(prefix) :].decode(errors="replace")
    return None


def end(processes: Iterable[ProcessId], *, sig: signal.Signals, timeout_seconds: float) -> None:
    """Signal all, wait for all, then SIGKILL those that are left."""
    left = [process for process in processes if is_running(process)]
    for chosen, patience in ((sig, timeout_seconds), (signal.SIGKILL, timeout_seconds)):
        for process in left:
            send(process, chosen)
        left = _await_exit(left, patience)
        if not left:
            return


def send(process: ProcessId, sig: signal.Signals) -> None:
    """Signal exactly this process: a pid that was reused meanwhile is left alone."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if is_running(process):
                signal.pidfd_send_signal(handle, sig)
        finally:
            os.close(handle)


def reap(pid: int) -> None:
    """Collect the exit status if it was our own child; a zombie would count as running for its other observers."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _await_exit(processes: list[ProcessId], timeout_seconds: float) -> list[ProcessId]:
    deadline = time.monotonic() + timeout_seconds
    while True:
        processes = [process for process in processes if is_running(process)]
        if not processes or time.monotonic() > deadline:
            return processes
        time.sleep(0.02)


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from `state` on; the command name before it may hold spaces and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
