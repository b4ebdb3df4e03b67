"""Tracked text names no machine: neither paths and hosts of the one it was written on, nor where packages came from."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.repository.project import ROOT, tracked_files

REGISTRIES = re.compile(
    r"\b((files\.)?pythonhosted\.org|(test\.)?pypi\.org|(proxy|sum)\.golang\.org|goproxy\.(io|cn)|registry\.npmjs\.org"
    r"|[\w.-]*(artifactory|nexus|jfrog)[\w-]*\.[\w.-]+)\b",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"(?<![\w})>/.-])/(root|work)/")


def lines() -> Iterator[tuple[str, str]]:
    """Where, and what; checksums name modules by their public paths and this file names what it forbids."""
    for path in tracked_files():
        if path.name == "go.sum" or path == Path(__file__):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_no_machine_is_named() -> None:
    here = [str(ROOT), *([name] if len(name := socket.gethostname()) > 7 and name != "localhost" else [])]
    named = [where for where, line in lines() if MACHINE_PATHS.search(line) or any(machine in line for machine in here)]
    assert named == []


def test_no_registry_is_named() -> None:
    assert [where for where, line in lines() if REGISTRIES.search(line)] == []
