"""The C++ library appears whole or not at all, and a start without it says why."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from tidewheel.engine.kernels.cpu import build

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "small.cpp").write_text('extern "C" int tw_answer() { return 42; }\n', encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ("fpu avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16 amx_tile amx_bf16", "amx"),
        ("fpu avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16 amx_tile", "avx512"),
        ("fpu avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16", "avx512"),
        ("fpu avx2 fma avx512f avx512bw avx512vl avx512dq", "avx2"),
        ("fpu avx fma", None),
    ],
)
def test_a_cpu_is_judged_by_its_flags(tmp_path: Path, flags: str, chosen: str | None) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n", encoding="utf-8")
    assert build.best_instruction_set(cpuinfo) == chosen
    assert build.best_instruction_set(tmp_path / "absent") is None


def test_another_source_is_another_library(sources: Path) -> None:
    before = build.library_name("avx2", sources)
    assert build.library_name("avx2", sources) == before
    (sources / "small.cpp").write_text('extern "C" int tw_answer() { return 43; }\n', encoding="utf-8")
    assert build.library_name("avx2", sources) != before


@needs_compiler
def test_a_build_leaves_one_whole_file(sources: Path, tmp_path: Path) -> None:
    import ctypes

    folder = tmp_path / "cache" / "kernels"
    library = build.build_library(folder, "avx2", sources=sources)
    assert [path.name for path in folder.iterdir()] == [library.name]
    assert ctypes.CDLL(str(library)).tw_answer() == 42


@needs_compiler
def test_a_source_that_does_not_compile_is_named_and_leaves_nothing(sources: Path, tmp_path: Path) -> None:
    (sources / "small.cpp").write_text("int broken(\n", encoding="utf-8")
    with pytest.raises(build.BuildError, match=r"small\.cpp.*error"):
        build.build_library(tmp_path / "cache", "avx2", sources=sources)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_missing_compiler_is_named(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match="'no-such-compiler'; install"):
        build.build_library(tmp_path, "avx2", sources=sources, compiler="no-such-compiler")


@needs_compiler
def test_a_folder_that_cannot_be_written_is_named(sources: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file, not a folder", encoding="utf-8")
    with pytest.raises(build.BuildError, match="taken"):
        build.build_library(taken, "avx2", sources=sources)


@needs_compiler
def test_the_first_start_builds_and_the_second_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "find_library", lambda instructions: next(build.cache_folder().glob("*.so"), None))
    caplog.set_level(logging.INFO)
    first = build.find_or_build("avx2")
    assert first.parent == tmp_path / "tidewheel" / "kernels"
    assert ["once" in record.message for record in caplog.records] == [True, False]
    caplog.clear()
    assert build.find_or_build("avx2") == first
    assert caplog.records == []
