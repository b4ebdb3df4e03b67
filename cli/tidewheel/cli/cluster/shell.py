"""Run a command of this machine and turn its failure into words."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tidewheel.cli.cluster.errors import HostError, ToolError


def run(command: Sequence[str], *, stdin: str | None = None, timeout_seconds: float = 60) -> str:
    """What the command printed. ToolError carries its last words; HostError says that it is not installed."""
    try:
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_seconds
        )
    except FileNotFoundError as error:
        raise HostError(
            f"{command[0]} is not installed; `tidewheel cluster up` as root installs it on Debian"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{_short(command)}: no end within {timeout_seconds:.0f} s") from error
    if result.returncode != 0:
        words = (result.stderr or result.stdout).strip()[-2000:]
        raise ToolError(f"{_short(command)}: {words or f'exit status {result.returncode}'}")
    return result.stdout


def _short(command: Sequence[str]) -> str:
    """The command as a person would type it: without the folder of the program, without long arguments."""
    program, *arguments = command
    return " ".join([program.rpartition("/")[2], *(each[:80] for each in arguments)])
