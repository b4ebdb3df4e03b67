"""kubectl and helm, run against one kubeconfig."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.prebuilt import find_helm
from tidewheel.cli.cluster.progress import Progress
from tidewheel.cli.cluster.shell import run


@dataclass(frozen=True, slots=True)
class CommandLineTools:
    """For clusters we did not build: whatever kubectl and helm this machine has, or ours."""

    kubeconfig: Path
    progress: Progress

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        program = shutil.which("kubectl") or str(Binaries(self.progress).path("kubectl"))
        command = [program, f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(command, stdin=stdin, timeout_seconds=timeout_seconds)

    def helm(self, *arguments: str, timeout_seconds: float = 300) -> str:
        program = shutil.which("helm") or str(find_helm(self.progress))
        return run([program, f"--kubeconfig={self.kubeconfig}", *arguments], timeout_seconds=timeout_seconds)
