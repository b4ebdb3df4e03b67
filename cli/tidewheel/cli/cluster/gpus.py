"""Simulated GPUs on a node."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tidewheel.cli.cluster.processes import Launch, ProcessTable
from tidewheel.cli.cluster.sandboxes import node_sandbox
from tidewheel.cli.cluster.settings import ClusterSettings


def gpus(index: int) -> str:
    return f"gpus-{index}"


def start_gpus(index: int, settings: ClusterSettings, *, folder: Path, processes: ProcessTable) -> None:
    """Start the device plugin; it registers as soon as the kubelet listens."""
    program = [sys.executable, "-m", "tidewheel.cli.cluster.device_plugin"]
    arguments = [
        f"--resource={settings.gpu_resource}",
        f"--count={settings.gpus}",
        f"--unhealthy={_broken(folder)}",
    ]
    processes.start(Launch(gpus(index), [*program, *arguments], inside=node_sandbox(index)))


def break_gpus(folder: Path, ids: Iterable[str]) -> None:
    """Let exactly these devices (`gpu-0`, ...) of a node be unhealthy from now on."""
    temporary = _broken(folder).with_suffix(".new")
    temporary.write_text("\n".join(ids))
    temporary.rename(_broken(folder))


def _broken(folder: Path) -> Path:
    return folder / "broken-gpus"
