"""Programs in the cache are complete, or built again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidewheel.cli.cluster.binaries import Binaries, is_intact
from tidewheel.cli.cluster.errors import BuildError, HostError
from tidewheel.cli.cluster.go_modules import KUBERNETES, GoModule
from tidewheel.cli.cluster.progress import QuietProgress


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "bin"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GoModule:
    """A module of one file without dependencies."""
    source = tmp_path / "hello"
    source.mkdir()
    (source / "go.mod").write_text("module example.test/hello\n\ngo 1.21\n")
    (source / "go.sum").write_text("")
    (source / "main.go").write_text("package main\n\nfunc main() { println(1) }\n")
    monkeypatch.setattr(GoModule, "source", property(lambda _: source))
    return GoModule(
        name="hello", version="v1", packages={"hello": "example.test/hello"}, usually_seconds=1, disk_gib=0.1
    )


def adopt(cache: Path, module: GoModule) -> Path:
    built = cache / "built"
    built.parent.mkdir(exist_ok=True)
    built.write_bytes(b"\x7fELF and more")
    Binaries(QuietProgress(), root=cache).adopt(module, "hello", built)
    return cache / module.key() / "hello"


def test_a_truncated_binary_is_not_intact(cache: Path, module: GoModule) -> None:
    binary = adopt(cache, module)
    assert is_intact(binary)
    os.truncate(binary, 4)
    assert not is_intact(binary)


def test_a_binary_with_other_bytes_is_not_intact(cache: Path, module: GoModule) -> None:
    binary = adopt(cache, module)
    binary.write_bytes(b"\x7fELF and mora")
    later = binary.stat().st_mtime_ns + 10**9
    os.utime(binary, ns=(later, later))
    assert not is_intact(binary)


def test_a_copied_binary_with_the_same_bytes_is_intact(cache: Path, module: GoModule) -> None:
    binary = adopt(cache, module)
    later = binary.stat().st_mtime_ns + 10**9
    os.utime(binary, ns=(later, later))
    assert is_intact(binary)


def test_the_key_follows_every_source_file(module: GoModule) -> None:
    before = module.key()
    (module.source / "go.sum").write_text("changed")
    assert module.key() != before


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("go"), reason="builds with Go")
def test_what_is_missing_or_damaged_is_built_and_nothing_else_is_left(cache: Path, module: GoModule) -> None:
    binaries = Binaries(QuietProgress(), root=cache)
    program = module.source / "main.go"
    right = program.read_text()
    program.write_text(right.replace("println(1)", "nonsense()"))
    with pytest.raises(BuildError, match="undefined: nonsense"):
        binaries.ensure(module, ["hello"])

    program.write_text(right)
    (cache / "build-hello-abandoned").mkdir()  # of a build that was killed
    binaries.ensure(module, ["hello"])
    binary = cache / module.key() / "hello"
    assert run([str(binary)]) == "1"
    os.truncate(binary, 10)
    binaries.ensure(module, ["hello"])
    assert run([str(binary)]) == "1"
    assert sorted(path.name for path in cache.iterdir()) == [module.key(), "hello.lock"]


def test_a_machine_without_go_is_told_the_ways_out(
    cache: Path, module: GoModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HostError, match=r"install Go 1\.25.*--provider existing"):
        Binaries(QuietProgress(), root=cache).ensure(module, ["hello"])


def test_a_full_disk_is_noticed_before_the_build(cache: Path, module: GoModule) -> None:
    enormous = GoModule(
        name="hello", version="v1", packages={"hello": "example.test/hello"}, usually_seconds=1, disk_gib=10**9
    )
    if shutil.which("go"):
        with pytest.raises(HostError, match="XDG_CACHE_HOME"):
            Binaries(QuietProgress(), root=cache).ensure(enormous, ["hello"])


def test_assets_of_controller_runtime_are_used_without_building(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "etcd").write_text("#!/bin/sh\n")
    (assets / "etcd").chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    binaries = Binaries(QuietProgress(), root=cache)
    binaries.ensure(KUBERNETES, ["etcd"])
    assert binaries.path("etcd") == assets / "etcd"


def run(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.strip()
