"""A figure that says where it comes from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """``exact`` is the value as computed, ``value`` as it is used (rounded, where the plan rounds)."""

    key: str
    section: str
    text: str
    value: float
    unit: str
    formula: str
    exact: float


class Sheet:
    """Figures in the order in which they follow from each other."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}
        self._section = ""

    def section(self, name: str) -> None:
        """Figures from here on belong to this part."""
        self._section = name

    def add(self, key: str, text: str, exact: float, unit: str, formula: str, *, used: float | None = None) -> float:
        """Note a figure and return the value to go on with."""
        value = exact if used is None else used
        self._figures[key] = Figure(key, self._section, text, value, unit, formula, exact)
        return value

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._figures.values())

    def __getitem__(self, key: str) -> Figure:
        return self._figures[key]


def rounded_down(value: float, digits: int) -> float:
    """To so many significant digits, towards zero; unchanged for 0 digits."""
    steps, unit = _steps(value, digits)
    return math.floor(steps) * unit


def rounded_up(value: float, digits: int) -> float:
    """To so many significant digits, away from zero; unchanged for 0 digits."""
    steps, unit = _steps(value, digits)
    return math.ceil(steps) * unit


def _steps(value: float, digits: int) -> tuple[float, float]:
    if digits < 1 or value <= 0:
        return 1.0, value
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return round(value / unit, 9), unit  # 3.3e4 / 1e3 is 33.00000000000001
