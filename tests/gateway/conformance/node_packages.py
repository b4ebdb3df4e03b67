"""The openai package for Node, installed once per version into the cache that Tidewheel's own tools use."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "6.49.0"
MISSING = "Node and npm are not installed; install nodejs (18 or newer) and npm, or deselect the conformance tests"


def openai_for_node() -> Path:
    """The folder that holds ``node_modules``. Raises FileNotFoundError, or CalledProcessError where npm fails."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "tidewheel" / "npm" / f"openai-{VERSION}"
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise FileNotFoundError(MISSING)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as new:
        subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", new, f"openai@{VERSION}"],
            check=True,
            capture_output=True,
            timeout=300,
        )
        built = Path(new) / "built"
        built.mkdir()
        (Path(new) / "node_modules").rename(built / "node_modules")
        try:
            built.rename(folder)  # whole or not at all; another run may have been first
        except OSError:
            assert folder.is_dir()
    return folder
