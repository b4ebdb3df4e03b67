"""Compile the C++ kernels: `python -m tidewheel.engine.kernels.cpu.build` in an image, else once at the first start.

The library has a plain C interface, so neither Python's nor torch's headers are needed and it takes about ten seconds
for each instruction set. Its file name carries a hash of the source and the flags: an old library is never
loaded for a new source.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = Path(__file__).parent
# The best first; flags as /proc/cpuinfo spells them.
INSTRUCTION_SETS = {
    "amx": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "fma", "amx_tile", "amx_bf16"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "fma"),
    "avx2": ("avx2", "fma"),
}
_SPELLED = {"avx512_bf16": "avx512bf16", "amx_tile": "amx-tile", "amx_bf16": "amx-bf16"}  # as g++ does
_FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-pthread")

logger = logging.getLogger(__name__)


class BuildError(Exception):
    """Why there is no library, as a sentence for the log."""


def best_instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The name of the first of INSTRUCTION_SETS that this CPU has."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    return next((name for name, flags in INSTRUCTION_SETS.items() if found.issuperset(flags)), None)


def library_name(instructions: str, sources: Path = SOURCES) -> str:
    digest = hashlib.sha256(" ".join(_flags(instructions)).encode())
    for path in sorted((*sources.glob("*.cpp"), *sources.glob("*.h"))):
        digest.update(path.read_bytes())
    return f"{instructions}-{digest.hexdigest()[:16]}.so"


def _flags(instructions: str) -> list[str]:
    return [*_FLAGS, *("-m" + _SPELLED.get(flag, flag) for flag in INSTRUCTION_SETS[instructions])]


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidewheel" / "kernels"


def find_library(instructions: str) -> Path | None:
    """Beside the sources (an image), else in the cache folder."""
    candidates = (folder / library_name(instructions) for folder in (SOURCES, cache_folder()))
    return next((path for path in candidates if path.is_file()), None)


def build_library(folder: Path, instructions: str, *, sources: Path = SOURCES, compiler: str | None = None) -> Path:
    """Compile into `folder`; the finished file appears at once, so that two builders or a full disk do no harm."""
    compiler = compiler or os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise BuildError(f"there is no compiler {compiler!r}; install g++, set CXX, or build the library beforehand")
    target = folder / library_name(instructions, sources)
    began = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            built = Path(scratch) / target.name
            command = [compiler, *_flags(instructions), *map(str, sorted(sources.glob("*.cpp"))), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode != 0:
                raise BuildError(f"{compiler} failed on {sources}: {_first_error(done.stderr)}")
            built.replace(target)
    except OSError as error:
        raise BuildError(f"cannot write the library to {folder}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} took longer than {error.timeout:.0f} s") from error
    logger.info("compiled the C++ kernels into %s in %.1f s", target, time.monotonic() - began)
    return target


def find_or_build(instructions: str) -> Path:
    found = find_library(instructions)
    if found is not None:
        return found
    logger.info("compiling the C++ kernels into %s (once; about 10 s)", cache_folder())
    return build_library(cache_folder(), instructions)


def _first_error(output: str) -> str:
    lines = output.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no output")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tidewheel.engine.kernels.cpu.build", description=__doc__)
    parser.add_argument("--folder", type=Path, default=SOURCES, help="default: beside the sources, for an image")
    parser.add_argument("--cached", action="store_true", help="only if there is none yet, into the user's cache folder")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if options.cached:
            instructions = best_instruction_set()
            if instructions is None:
                raise BuildError(
                    f"this CPU has none of {', '.join(INSTRUCTION_SETS)}; the engine uses plain torch here"
                )
            print(find_or_build(instructions))
        else:
            for instructions in INSTRUCTION_SETS:
                print(build_library(options.folder, instructions))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
