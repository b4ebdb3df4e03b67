"""Processes are found, ended and started again by identity, never by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tidewheel.cli.cluster.cleanup import find_leftovers, owned_name, owner_of, process_table, remove_leftovers
from tidewheel.cli.cluster.errors import ComponentError, NotRunningError
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.processes import Launch, ProcessTable
from tidewheel.cli.cluster.procfs import ProcessId, end, environment_value, identify, is_running
from tidewheel.cli.cluster.waiting import wait_until


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, what="the condition of this test", timeout_seconds=20, poll_seconds=0.002)


SLEEP = ["sleep", "600"]


@pytest.fixture
def table(tmp_path: Path) -> ProcessTable:
    return ProcessTable(records=tmp_path, logs=tmp_path, mark=str(tmp_path), die_with_parent=True)


def test_a_process_is_known_to_a_later_program(table: ProcessTable, tmp_path: Path) -> None:
    started = table.start(Launch("sleeper", SLEEP))
    later = ProcessTable(records=tmp_path, logs=tmp_path, mark=str(tmp_path))
    assert later.find("sleeper") == started
    until(lambda: later.marked() == [started])
    later.stop("sleeper")
    assert later.find("sleeper") is None


def test_starting_what_runs_does_nothing(table: ProcessTable) -> None:
    assert table.start(Launch("sleeper", SLEEP)) == table.start(Launch("sleeper", SLEEP))
    table.stop("sleeper", sig=signal.SIGKILL)


def test_a_killed_process_starts_again_with_its_arguments(table: ProcessTable) -> None:
    first = table.start(Launch("sleeper", SLEEP, env={"COLOUR": "blue"}))
    table.stop("sleeper", sig=signal.SIGKILL)
    second = table.restart("sleeper")
    assert first != second
    until(lambda: environment_value(second.pid, "COLOUR") == "blue")
    table.stop("sleeper", sig=signal.SIGKILL)


def test_a_reused_pid_is_left_alone(table: ProcessTable) -> None:
    running = table.start(Launch("sleeper", SLEEP))
    stranger = ProcessId(running.pid, running.started - 1)  # as recorded by somebody whose process has ended
    assert not is_running(stranger)
    end([stranger], sig=signal.SIGKILL, timeout_seconds=5)
    assert is_running(running)
    table.stop("sleeper", sig=signal.SIGKILL)


def test_what_ignores_sigterm_is_killed(table: ProcessTable) -> None:
    process = table.start(Launch("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 600; done"]))
    until(lambda: "ready" in table.log("stubborn").read_text())
    table.stop("stubborn", timeout_seconds=0.2)
    assert not is_running(process)
    end(table.marked(), sig=signal.SIGKILL, timeout_seconds=5)  # its own `sleep`


def test_a_failure_carries_the_end_of_the_log(table: ProcessTable) -> None:
    table.start(Launch("failing", ["sh", "-c", "echo the disk is full >&2; exec sleep 600"]))
    until(lambda: "full" in table.log("failing").read_text())
    assert table.failure("failing") is None
    table.stop("failing", sig=signal.SIGKILL)
    error = table.failure("failing")
    assert isinstance(error, ComponentError)
    assert "the disk is full" in str(error)


def test_a_program_that_does_not_exist_is_named(table: ProcessTable) -> None:
    with pytest.raises(ComponentError, match="no-such-program"):
        table._posix_spawn("x", ["no-such-program"], {})


def test_an_unknown_component_is_answered_with_those_there_are(table: ProcessTable) -> None:
    table.start(Launch("sleeper", SLEEP))
    table.stop("sleeper", sig=signal.SIGKILL)
    with pytest.raises(NotRunningError, match="it has: sleeper"):
        table.restart("kubelet-7")


def test_a_cluster_name_tells_its_owner() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert owner_of(owned_name("e2e", me), "e2e") == me
    assert owner_of("e2e-by-hand", "e2e") is None
    assert owner_of(owned_name("other", me), "e2e") is None


def test_cleaning_up_ends_what_was_never_recorded_and_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An `up` can be killed between the start of a process and the note of it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ours, theirs = ClusterFolder.of("ours"), ClusterFolder.of("ours-2")
    for folder in (ours, theirs):
        folder.create()
    unrecorded = process_table(ours).start(Launch("sleeper", SLEEP))
    (ours.processes / "sleeper.json").unlink()
    other = process_table(theirs).start(Launch("sleeper", SLEEP))
    until(lambda: process_table(ours).marked() == [unrecorded])
    remove_leftovers(ours)
    assert not is_running(unrecorded)
    assert not find_leftovers(ours)
    assert is_running(other)
    assert theirs.root.exists()
    remove_leftovers(theirs)
    assert not is_running(other)


def test_a_process_whose_first_thread_has_ended_runs_on_until_the_others_have() -> None:
    """It still holds its ports: a restart that does not wait for them finds its own address in use."""
    code = """
import ctypes, sys, threading
hold = threading.Event()
threading.Thread(target=hold.wait).start()
sys.stdout.write("ready\\n"); sys.stdout.flush()
ctypes.CDLL(None).pthread_exit(None)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        process = identify(child.pid)
        assert process is not None
        until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert is_running(process)
        child.kill()
        child.wait()
        assert not is_running(process)
