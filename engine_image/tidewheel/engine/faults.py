"""Faults on request, for the tests of everything around the engine. Only the simulated runner takes them.

slow:FACTOR      every step takes FACTOR times as long
slower:N         after N tokens in all a step takes twice as long, after 2 N three times, and so on: a slow leak
stall:N          once in N tokens a step takes 3 s more, so that every open reply pauses
error:SHARE      that share of requests fails with a 500 before the first byte (0.1: every tenth)
error-after:N    every reply fails after N tokens
hang[:N]         the step loop stops for good (after N tokens in all)
crash[:N]        the process dies without a word (after N tokens in all)
die[:N]          the step loop dies of an exception (after N tokens in all), and the process ends with code 1
leak:BYTES       every token takes so much memory for good
start-crash      the process exits with code 1 while starting
start-delay:S    S seconds pass before the warm-up
not-ready        the engine never becomes ready
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from tidewheel.engine.errors import StartError


@dataclass(frozen=True, slots=True)
class Faults:
    slow: float = 1.0
    slower: int | None = None
    stall: int | None = None
    error: float = 0.0
    error_after: int | None = None
    hang: int | None = None
    crash: int | None = None
    die: int | None = None
    leak: int = 0
    start_crash: bool = False
    start_delay: float = 0.0
    not_ready: bool = False

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Faults:
        known = {f.name.replace("_", "-"): f.name for f in fields(cls)}
        values: dict[str, object] = {}
        for text in texts:
            name, _, value = text.partition(":")
            if name not in known:
                raise StartError(f"--fault {text}: no such fault; choose from {', '.join(known)}.")
            values[known[name]] = _parse_value(name, value)
        return cls(**values)  # type: ignore[arg-type]


def _parse_value(name: str, value: str) -> object:
    try:
        match name:
            case "start-crash" | "not-ready":
                if value:
                    raise ValueError
                return True
            case "hang" | "crash" | "die":
                return int(_positive(int(value or 0)))
            case "error-after" | "leak":
                return int(_positive(int(value)))
            case "slower" | "stall":
                return int(_positive(int(value) - 1)) + 1
            case _:
                return _positive(float(value))
    except ValueError:
        raise StartError(f"--fault {name}: {value or 'nothing'!r} is not a value for it; see --help.") from None


def _positive(number: float) -> float:
    if not 0 <= number < float("inf"):
        raise ValueError
    return number
