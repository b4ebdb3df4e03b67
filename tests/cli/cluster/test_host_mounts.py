"""What containers see of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidewheel.cli.cluster.container_runtime import with_mounts
from tidewheel.cli.cluster.host_mounts import (
    HostMount,
    closed_to_others,
    compiled_kernels,
    host_mounts,
    outermost,
    source_folders,
)
from tidewheel.cli.cluster.local_images import program_image


def test_containers_see_the_interpreter_our_sources_and_the_weights() -> None:
    mounts = host_mounts()
    places = [mount.target for mount in mounts]
    for needed in (Path(sys.prefix) / "bin", Path(sys.base_prefix), Path(__file__).parents[3] / "crds" / "tidewheel"):
        assert any(needed.is_relative_to(place) for place in places), needed
    (weights,) = (mount.source for mount in mounts if mount.target == Path("/models/smollm2"))
    assert list(weights.glob("*.gguf"))


def test_pods_share_the_kernels_that_were_compiled_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not any("kernels" in mount.target.parts for mount in host_mounts())
    compiled_kernels().mkdir(parents=True)
    (kernels,) = (mount for mount in host_mounts() if mount.source == compiled_kernels())
    environment = program_image("engine").environment
    assert kernels.target == Path(environment["XDG_CACHE_HOME"]) / "tidewheel" / "kernels"


def test_they_see_it_read_only() -> None:
    spec = with_mounts({"mounts": [{"destination": "/proc"}]}, [HostMount(Path("/usr"), Path("/usr"))])
    proc, usr = spec["mounts"]  # type: ignore[misc]
    assert proc == {"destination": "/proc"}
    assert "ro" in usr["options"]


def test_a_folder_in_another_is_mounted_once() -> None:
    places = [Path(p) for p in ("/usr", "/usr/local", "/home/me/checkout", "/usr", "/home/me/checkout-2")]
    assert outermost(places) == [Path("/usr"), Path("/home/me/checkout"), Path("/home/me/checkout-2")]


def test_source_folders_are_those_with_our_packages(tmp_path: Path) -> None:
    (tmp_path / "ours" / "tidewheel").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    assert source_folders(["", str(tmp_path / "ours"), str(tmp_path / "other")]) == [tmp_path / "ours"]


@pytest.mark.parametrize(("mode", "closed"), [(0o755, False), (0o700, True), (0o750, True)])
def test_folders_that_pods_could_not_read_are_named(tmp_path: Path, mode: int, closed: bool) -> None:
    tmp_path.chmod(mode)
    assert bool(closed_to_others([HostMount(tmp_path, tmp_path)])) is closed
