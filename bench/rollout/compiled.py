"""Most of a simulated rollout's time goes into the judge's evidence; where there is a C compiler, it does that part.

It is checked against the judge's own before it is used. Nothing but simulations uses it.
"""

import ctypes
import random
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Sequence
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, Final

from tidewheel.rollout.evidence.processes import NO_NOISE, NOISE_LEVELS, ODDS_RATIOS, EvidenceProcess, Side

_SOURCE: Final = Path(__file__).with_name("accumulate.c")
_ADDRESS, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int, ctypes.c_double
_LEVELS: "Final[dict[tuple[float, ...], array[float]]]" = {
    levels: array("d", levels) for levels in (NOISE_LEVELS, NO_NOISE)
}
_RATIOS: Final = {side: array("d", [ratio**side.value for ratio in ODDS_RATIOS]) for side in Side}


def compile_evidence() -> bool:
    """Put the compiled evidence in place; False where there is no compiler or it does not come to the same."""
    library = _compile()
    if library is None:
        return False
    methods = _methods(library)
    if not _is_same(type("CompiledProcess", (), methods)):
        return False
    for name, method in methods.items():
        setattr(EvidenceProcess, name, method)
    return True


def _compile() -> ctypes.CDLL | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "accumulate.so"
        command = [compiler, "-O2", "-std=gnu11", "-shared", "-fPIC", str(_SOURCE), "-o", str(library), "-lm"]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        return ctypes.CDLL(str(library))


def _methods(library: ctypes.CDLL) -> dict[str, Any]:
    add_block, weigh = library.add_block, library.weigh
    add_block.restype = weigh.restype = None
    add_block.argtypes = [_ADDRESS, _INT, _ADDRESS, _DOUBLE, _ADDRESS, _INT, _ADDRESS, _INT]
    weigh.argtypes = [_ADDRESS, _ADDRESS, _INT, _INT, _INT]

    def __init__(  # noqa: N807 - it becomes a method
        self: Any, *, columns: int = 1, side: Side = Side.ABOVE, noise_levels: Sequence[float] = NOISE_LEVELS
    ) -> None:
        levels, ratios = _LEVELS[tuple(noise_levels)], _RATIOS[side]
        totals = array("d", bytes(8 * columns * len(levels) * (1 + len(ratios))))
        self._nulls, self._alternatives = totals, (totals.buffer_info()[0], columns)
        self._noise, self._odds_ratios = levels.buffer_info(), ratios.buffer_info()
        self._logarithms, self.blocks = None, 0

    def add(self: Any, *, limit_odds: float, counts: Sequence[tuple[float, float]]) -> None:
        events = array("d", chain.from_iterable(counts))
        if not 0.0 < limit_odds < inf or not any(events):
            return
        self.blocks += 1
        self._logarithms = None
        add_block(*self._alternatives, events.buffer_info()[0], limit_odds, *self._odds_ratios, *self._noise)

    def log_evidence(self: Any) -> tuple[float, ...]:
        if self._logarithms is None:
            totals, columns = self._alternatives
            evidence = array("d", bytes(8 * columns))
            weigh(evidence.buffer_info()[0], totals, columns, self._odds_ratios[1], self._noise[1])
            self._logarithms = tuple(evidence)
        found: tuple[float, ...] = self._logarithms
        return found

    return {"__init__": __init__, "add": add, "log_evidence": log_evidence}


def _is_same(compiled: Any) -> bool:
    chance = random.Random(1)
    for side, levels in ((Side.ABOVE, NOISE_LEVELS), (Side.BELOW, NOISE_LEVELS), (Side.ABOVE, NO_NOISE)):
        pair = [kind(columns=3, side=side, noise_levels=levels) for kind in (EvidenceProcess, compiled)]
        for _ in range(20):
            counts = [(float(chance.randrange(3) * chance.randrange(90)), chance.uniform(0, 900)) for _ in range(2)]
            odds = chance.uniform(0.01, 2)
            for process in pair:
                process.add(limit_odds=odds, counts=[*counts, (0.0, 0.0)])
        mine, other = (process.log_evidence() for process in pair)
        if any(abs(own - theirs) > 1e-9 * max(1.0, abs(own)) for own, theirs in zip(mine, other, strict=True)):
            return False
    return True
