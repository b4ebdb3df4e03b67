"""The chart as helm renders it."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "tidewheel"
NAMESPACE = "tidewheel-system"


@dataclass(frozen=True)
class Helm:
    """The helm that the local cluster uses."""

    binary: Path

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([self.binary, *arguments], capture_output=True, text=True, timeout=120, check=False)

    def render(self, *arguments: str) -> list[dict[str, Any]]:
        """Every object of `helm template`."""
        done = self.run("template", "tidewheel", str(CHART), "--namespace", NAMESPACE, *arguments)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]


def select(objects: Sequence[dict[str, Any]], kind: str, name: str | None = None) -> list[dict[str, Any]]:
    """Objects of a kind, and of a name if one is given."""
    return [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
