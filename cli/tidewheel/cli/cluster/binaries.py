"""Find, build and keep the cluster's programs.

A binary in the cache is complete: it is built beside its place and renamed into it, with a note of its size and digest.
What is absent, or no longer as noted, is built again. A lock file makes a second `up` wait instead of building too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidewheel.cli.cluster.errors import BuildError, HostError
from tidewheel.cli.cluster.folders import cache_folder
from tidewheel.cli.cluster.go_modules import MODULES, GoModule
from tidewheel.cli.cluster.progress import Progress, Stage

_GIB = 1 << 30


class Binaries:
    """Programs by name. `assets` is a folder to prefer, such as controller-runtime's KUBEBUILDER_ASSETS."""

    def __init__(self, progress: Progress, *, root: Path | None = None, assets: Path | None = None) -> None:
        self._progress = progress
        self._root = root or cache_folder() / "bin"
        self._assets = assets or (Path(value) if (value := os.environ.get("KUBEBUILDER_ASSETS")) else None)

    def folder(self, module: GoModule) -> Path:
        return self._root / module.key()

    def path(self, name: str) -> Path:
        """Where the program is, built if need be."""
        module = next(module for module in MODULES if name in module.products)
        self.ensure(module, [name])
        return self._preferred(name) or self.folder(module) / name

    def ensure(self, module: GoModule, names: Sequence[str]) -> None:
        """Build those of the programs that are missing or damaged, in one go."""
        if not self._missing(module, names):
            return
        with self._locked(module):
            missing = self._missing(module, names)  # another `up` may have built them while we waited
            if missing:
                self._build(module, missing)

    def adopt(self, module: GoModule, name: str, built: Path) -> None:
        """Move a finished binary into the cache: note first, then the file, each by rename."""
        target = self.folder(module) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        built.chmod(0o755)
        note = _note(target)
        temporary = note.with_suffix(".new")
        temporary.write_text(json.dumps({"size": built.stat().st_size, "sha256": _sha256(built)}))
        temporary.rename(note)
        built.rename(target)

    def _preferred(self, name: str) -> Path | None:
        candidate = self._assets / name if self._assets else None
        return candidate if candidate is not None and os.access(candidate, os.X_OK) else None

    def _missing(self, module: GoModule, names: Sequence[str]) -> list[str]:
        folder = self.folder(module)
        return [name for name in names if not self._preferred(name) and not is_intact(folder / name)]

    def _build(self, module: GoModule, names: Sequence[str]) -> None:
        self._check_host(module)
        for abandoned in self._root.glob(f"build-{module.name}-*"):  # ours alone, as we hold the lock
            shutil.rmtree(abandoned, ignore_errors=True)
        packages = [name for name in names if name in module.packages]
        with tempfile.TemporaryDirectory(prefix=f"build-{module.name}-", dir=self._root) as scratch:
            source, output = Path(scratch) / "source", Path(scratch) / "output"
            shutil.copytree(module.source, source)  # an installed package's folder may be read-only
            title = f"building {module.name} {module.version} (once; kept in {self._root})"
            with self._progress.stage(title, usually_seconds=module.usually_seconds) as stage:
                if packages:
                    stage.update("fetching modules")
                    total = _count_packages(module, packages, source=source, cache=self._go_cache(module))
                    self._compile(module, packages, source=source, output=output, stage=stage, total=total)
                for name in packages:
                    self.adopt(module, name, output / _output_name(module.packages[name]))
                for name in set(names) - set(packages):
                    joined = _join_documents(module, name, source=source, cache=self._go_cache(module))
                    self.adopt(module, name, joined)
        # Gigabytes that only a next version would use. An interrupted build keeps it and so carries on where it was.
        shutil.rmtree(self._go_cache(module), ignore_errors=True)

    def _compile(
        self, module: GoModule, packages: Sequence[str], *, source: Path, output: Path, stage: Stage, total: int
    ) -> None:
        environment = _environment(self._go_cache(module))
        command = module.build_command(packages, output)
        lines: list[str] = []
        with subprocess.Popen(
            command, cwd=source, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as build:
            for line in build.stderr or ():
                lines.append(line.rstrip())
                stage.update(f"{min(len(lines), total):,} of {total:,} packages")
        if build.returncode != 0:
            raise BuildError(f"go build of {module.name} failed:\n" + "\n".join(lines[-15:]))

    def _go_cache(self, module: GoModule) -> Path:
        return self._root / f"go-cache-{module.name}"

    def _check_host(self, module: GoModule) -> None:
        if shutil.which("go") is None:
            raise HostError(
                f"{module.name} must be built and there is no `go` on PATH: install Go 1.25 or newer "
                "(https://go.dev/dl), or use a cluster of your own: --provider existing or --provider kind"
            )
        self._root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._root).free / _GIB
        if free < module.disk_gib:
            raise HostError(
                f"building {module.name} needs about {module.disk_gib:.0f} GiB of disk for a while, {self._root} has "
                f"{free:.1f} GiB: free some, or set XDG_CACHE_HOME to a folder on a larger disk"
            )

    @contextmanager
    def _locked(self, module: GoModule) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / f"{module.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._progress.say(f"  another process builds {module.name}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def is_intact(path: Path) -> bool:
    """The file is as it was noted when it was built. Its digest is computed only if its time stamp says it changed."""
    note = _note(path)
    try:
        expected = json.loads(note.read_text())
        status = path.stat()
    except (OSError, ValueError):
        return False
    if status.st_size != expected["size"]:
        return False
    if status.st_mtime_ns <= note.stat().st_mtime_ns:
        return True
    if _sha256(path) != expected["sha256"]:
        return False
    os.utime(note)
    return True


def _note(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _environment(cache: Path) -> dict[str, str]:
    """Without C, so that the binaries depend on nothing; without a person's own flags, so that all build the same."""
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOCACHE": str(cache)}


def _count_packages(module: GoModule, names: Sequence[str], *, source: Path, cache: Path) -> int:
    """How many packages the programs consist of. Fetches the modules, which is most of its time."""
    tags = [f"-tags={module.tags}"] if module.tags else []
    packages = [module.packages[name] for name in names]
    return len(_go(module, ["list", "-deps", *tags, *packages], source=source, cache=cache).splitlines())


def _join_documents(module: GoModule, name: str, *, source: Path, cache: Path) -> Path:
    origin, files = module.documents[name]
    _go(module, ["mod", "download", origin], source=source, cache=cache)
    folder = Path(_go(module, ["list", "-m", "-f={{.Dir}}", origin], source=source, cache=cache).strip())
    joined = source / name
    joined.write_text("---\n".join((folder / file).read_text() for file in files))
    return joined


def _go(module: GoModule, arguments: Sequence[str], *, source: Path, cache: Path) -> str:
    result = subprocess.run(
        ["go", *arguments], cwd=source, env=_environment(cache), capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise BuildError(
            f"the modules of {module.name} could not be fetched; is the Go module proxy (go env GOPROXY) reachable?\n"
            + result.stderr[-2000:]
        )
    return result.stdout


def _output_name(package: str) -> str:
    """go names a binary after the last element of its import path that is not a major version."""
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]
