"""A control plane without nodes, for tests of whatever talks to the API server: no root, free ports, 3 seconds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.control_plane import API_SERVER, ETCD, ControlPlane, Endpoints
from tidewheel.cli.cluster.processes import ProcessTable
from tidewheel.cli.cluster.procfs import ProcessId, identify, is_running
from tidewheel.cli.cluster.progress import Progress, QuietProgress

_PREFIX = "tidewheel-control-plane-"


@contextmanager
def running_control_plane(
    components: Sequence[str] = (ETCD, API_SERVER), *, progress: Progress | None = None
) -> Iterator[ControlPlane]:
    """Run it for the length of the block. Its processes die with this one, even on SIGKILL; its files go at the end."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    owner = identify(os.getpid())
    assert owner is not None
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner.pid}-{owner.started}-"))
    for name in ("pki", "logs", "processes"):
        (folder / name).mkdir()
    plane = ControlPlane(
        folder,
        binaries=Binaries(progress or QuietProgress()),
        endpoints=Endpoints.on_loopback(),
        processes=ProcessTable(
            records=folder / "processes", logs=folder / "logs", mark=str(folder), die_with_parent=True
        ),
    )
    try:
        plane.start(components)
        yield plane
    finally:
        plane.stop_all()
        shutil.rmtree(folder)


def _remove_abandoned(parent: Path) -> None:
    """Delete the folders of owners that were killed."""
    for folder in parent.glob(f"{_PREFIX}*-*-*"):
        pid, started, _ = folder.name.removeprefix(_PREFIX).split("-", 2)
        if not is_running(ProcessId(int(pid), int(started))):
            shutil.rmtree(folder, ignore_errors=True)
