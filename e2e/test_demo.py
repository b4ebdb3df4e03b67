"""`make demo` itself, after a run of it that was killed half-way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from tidewheel.cli.cluster.cleanup import owned_name, process_table, remove_abandoned
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.procfs import identify
from tidewheel.cli.cluster.settings import ClusterSettings

_PREFIX = "demo"
_TIDEWHEEL = Path(sys.executable).with_name("tidewheel")


@pytest.fixture
def name() -> Iterator[str]:
    """A cluster name of this run's own; whatever has that name is gone afterwards."""
    remove_abandoned(_PREFIX)
    owner = identify(os.getpid())
    assert owner is not None
    chosen = owned_name(_PREFIX, owner)
    yield chosen
    if ClusterFolder.of(chosen).root.exists():
        LocalCluster(ClusterSettings(name=chosen)).down()


@pytest.mark.timeout(600)
async def test_a_demo_that_was_killed_is_cleaned_up_by_the_next_one(name: str, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    killed = _start(name, output)
    await eventually(
        lambda: "pod chat-v1-0-0" in output.read_text() or killed.poll() is not None,
        within_seconds=240,
        every=0.2,
        what="the first demo launches an engine",
    )
    assert killed.poll() is None, output.read_text()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert process_table(ClusterFolder.of(name)).marked(), "the cluster outlives the program that started it"

    done = _demo(name)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        f"removing the cluster {name} of an earlier run",
        "pod chat-v1-0-0: ready, it has generated a token",
        "traffic: v1:90% v2:10%",
        "default/chat rolled back from v1:90% v2:10% to v1:100%",
        "2 of 2 gateways obey",
        "new requests: v1 50 of 50",
        "rollout: step 1/3, Baking",
        "the judge: ",
    ):
        assert words in done.stdout, done.stdout
    # A machine that is too busy to be measured leaves the judge without evidence, and then nothing may move on.
    assert ("rollout: Rejected" in done.stdout) != ("without evidence nothing moves on" in done.stdout), done.stdout
    assert not process_table(ClusterFolder.of(name)).marked()
    assert not ClusterFolder.of(name).root.exists()


def _start(name: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen([_TIDEWHEEL, "demo", "--name", name], stdout=file, stderr=file)


def _demo(name: str) -> subprocess.CompletedProcess[str]:
    command = [_TIDEWHEEL, "demo", "--name", name, "--requests", "100"]
    return subprocess.run(command, capture_output=True, text=True, timeout=360, check=False)
