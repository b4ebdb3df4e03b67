"""What the guard tests know of the repository: its root, its components, its tracked files."""

import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@cache
def settings() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def components() -> list[str]:
    """The folders that stand on sys.path."""
    folders: list[str] = settings()["tool"]["hatch"]["build"]["dev-mode-dirs"]
    return folders


def leaf(component: str) -> Path:
    """The one package of a component."""
    (package,) = (path for path in (ROOT / component / "tidewheel").iterdir() if path.name != "__pycache__")
    return package


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that git tracks, below the root, as it is on disk now."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())


def run(
    command: Sequence[str | Path], *, folder: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A program's exit and words; the caller judges them."""
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
