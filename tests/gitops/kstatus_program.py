"""The kstatus library as a program: objects in, what `kubectl wait`-like tools make of them out.

`python -m tests.gitops.kstatus_program` builds it into the cache (two minutes of processor time, once per version).
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tidewheel.cli.cluster.binaries import Binaries, is_intact
from tidewheel.cli.cluster.errors import ClusterError
from tidewheel.cli.cluster.go_modules import GoModule
from tidewheel.cli.cluster.progress import QuietProgress

NAME: Final = "kstatus"


class _TestModule(GoModule):
    """Its source lies beside the tests: nobody but them needs it."""

    @property
    def source(self) -> Path:
        return Path(__file__).with_name(self.name)


MODULE: Final = _TestModule(
    name=NAME, version="v0.37.2", packages={NAME: "tidewheel.dev/kstatus"}, usually_seconds=120, disk_gib=1.5
)


def built() -> Path | None:
    """Where the program is; None where it has not been built."""
    program = Binaries(QuietProgress()).folder(MODULE) / NAME
    return program if is_intact(program) else None


def compute(program: Path, objects: Sequence[dict[str, Any]]) -> list[str]:
    """What kstatus says of each: InProgress, Failed, Current, Terminating, NotFound or Unknown."""
    lines = "".join(json.dumps(item) + "\n" for item in objects)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line)["status"] for line in done.stdout.splitlines()]


def main() -> None:
    """Build it, or say why not; tests then skip."""
    try:
        Binaries(QuietProgress()).ensure(MODULE, [NAME])
    except ClusterError as error:
        print(f"kstatus tests will be skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
