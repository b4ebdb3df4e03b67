"""Coverage-guided fuzzing of one target: ``python -m tests.fuzzing tests.engine.fuzz_requests 60``; needs atheris.

A target is a module with ``seeds()``, ``try_input(data)``, which raises for a bug of ours and only then, and
``CORPUS``, a folder whose files the ordinary tests replay; inputs that crash are kept there. Only our own modules are
instrumented: what they import is not ours to cover, and to instrument all of it takes longer than the fuzzing.
"""

import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast

_LONGEST = 4096


class Target(Protocol):
    """What is fuzzed."""

    CORPUS: Path
    seeds: Callable[[], Iterator[bytes]]
    try_input: Callable[[bytes], None]


def fuzz(name: str, *, seconds: int) -> None:
    """Does not return: libFuzzer ends the process, with 0 when nothing was found."""
    import atheris

    with atheris.instrument_imports(include=["tidewheel"]):
        target = cast("Target", importlib.import_module(name))
    target.CORPUS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for index, seed in enumerate(target.seeds()):
            if len(seed) <= _LONGEST:
                (Path(work) / f"seed-{index}").write_bytes(seed)
        limits = [f"-max_total_time={seconds}", f"-max_len={_LONGEST}", "-rss_limit_mb=4000", "-timeout=10"]
        atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={target.CORPUS}/", work], target.try_input)
        atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1], seconds=int(sys.argv[2]) if len(sys.argv) > 2 else 60)
