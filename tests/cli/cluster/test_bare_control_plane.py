"""The control plane that component tests run against."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS

from tidewheel.cli.cluster.control_plane import API_SERVER, ControlPlane
from tidewheel.cli.cluster.errors import ToolError
from tidewheel.cli.cluster.procfs import all_processes, environment_value

pytestmark = pytest.mark.component


def test_a_killed_api_server_comes_back_with_its_objects(control_plane: ControlPlane) -> None:
    control_plane.kubectl("create", "namespace", "kept-through-a-restart")
    control_plane.stop(API_SERVER, sig=signal.SIGKILL)
    assert not control_plane.is_ready()
    control_plane.start_again(API_SERVER)
    assert "kept-through-a-restart" in control_plane.kubectl("get", "namespaces", "--output=name")


def test_an_identity_without_rights_is_refused(control_plane: ControlPlane) -> None:
    kubeconfig = control_plane.kubeconfig_for("stranger", user="stranger")
    with pytest.raises(ToolError, match='User "stranger" cannot list resource "pods"'):
        control_plane.kubectl(f"--kubeconfig={kubeconfig}", "get", "pods")


_START_AND_HANG = """
import sys, time
from tidewheel.cli.cluster.bare_control_plane import running_control_plane
with running_control_plane() as plane:
    print(plane.folder, flush=True)
    time.sleep(600)
"""


def test_its_processes_die_with_a_test_run_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _START_AND_HANG], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert _marked(folder)
        owner.kill()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := _marked(folder):
        assert time.monotonic() < deadline, f"still running: {left}"


def _marked(folder: Path) -> list[int]:
    return [p.pid for p in all_processes() if environment_value(p.pid, "TIDEWHEEL_CLUSTER") == str(folder)]
