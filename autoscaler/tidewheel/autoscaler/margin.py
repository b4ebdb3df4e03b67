"""The margin on a forecast, taken from the forecast's own recent errors at this lead.

An online conformal margin: what the SLO quantile of the errors of the last days asks for, within 1 and 4. The
forecast may be poor; the margin grows until the promise holds.

Errors are taken relative to ``forecast ** p``. Where they grow with demand (a level that is wrong) p is 1, and the
margin is a plain factor; where they grow with its root (many independent users) p is 1/2, and a factor that is right
at night, when few make much noise, would be far too large at noon. Of three exponents the one is taken that would have
cost least lately: all of them cover the same share (locally weighted conformal prediction, Lei et al. 2018).
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SMALLEST: Final = 1.0
LARGEST: Final = 4.0
UNCALIBRATED: Final = 1.2
ENOUGH_SAMPLES: Final = 100
EXPONENTS: Final = (1.0, 0.75, 0.5)
RENEWED_AFTER: Final = 3
"""The quantile is looked up again after so many new errors."""


@dataclass(frozen=True, slots=True)
class Margin:
    """The factor, and what it rests on."""

    factor: float
    samples: int
    at_limit: bool = False
    """The errors ask for more than the largest margin: the promise cannot be held by a margin."""

    @property
    def calibrated(self) -> bool:
        """Whether it comes from errors, and not from the default."""
        return self.samples >= ENOUGH_SAMPLES


@dataclass(frozen=True, slots=True)
class _Law:
    """``forecast + size * forecast ** exponent`` covers the quantile."""

    exponent: float
    size: float
    cost: float

    def factor(self, forecast: float) -> float:
        return 1.0 + self.size * math.pow(max(forecast, 1e-9), self.exponent - 1.0)


class MarginWindow:
    """The last forecasts that came due at one lead, and what came instead."""

    def __init__(self, size: int) -> None:
        self._actual: Floats = np.zeros(size, dtype=np.float32)
        self._forecast: Floats = np.zeros(size, dtype=np.float32)
        self._count = 0
        self._law: tuple[int, float, _Law] | None = None

    def add(self, *, actual: float, forecast: float) -> None:
        """One bucket whose forecast has come due; both above 0."""
        if np.isfinite(actual / forecast):
            at = self._count % self._actual.size
            self._actual[at], self._forecast[at] = actual, forecast
            self._count += 1

    def margin(self, quantile: float, *, at: float) -> Margin:
        """For a promise such as 0.99, on a forecast of ``at``."""
        samples = min(self._count, self._actual.size)
        if samples < ENOUGH_SAMPLES:
            return Margin(UNCALIBRATED, samples)
        asked = self._current_law(quantile, samples).factor(at)
        return Margin(float(np.clip(asked, SMALLEST, LARGEST)), samples, at_limit=asked > LARGEST)

    def _current_law(self, quantile: float, samples: int) -> _Law:
        if self._law is None or self._law[1] != quantile or self._count - self._law[0] >= RENEWED_AFTER:
            actual, forecast = self._actual[:samples], self._forecast[:samples]
            laws = [_law(actual, forecast, exponent, quantile) for exponent in EXPONENTS]
            self._law = self._count, quantile, min(laws, key=lambda law: law.cost)
        return self._law[2]


def _law(actual: Floats, forecast: Floats, exponent: float, quantile: float) -> _Law:
    scale = forecast**exponent
    size = max(0.0, upper_quantile((actual - forecast) / scale, quantile))
    return _Law(exponent, size, float((forecast + size * scale).mean()))


def upper_quantile(values: NDArray[np.floating[Any]], quantile: float) -> float:
    """The smallest value that at least ``quantile`` of them do not exceed, one more for the finite sample."""
    rank = min(values.size - 1, int(np.ceil(quantile * (values.size + 1))) - 1)
    return float(np.partition(values, rank)[rank])
