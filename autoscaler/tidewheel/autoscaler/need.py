"""From a forecast to a need: the formula that operator, simulator and backtest share."""

from collections import deque
from typing import Final

HOLD_SECONDS: Final = 600
"""Down only to the highest need of so long; what comes within the lead is in the forecast's peak already."""


def unit_need(forecast_peak: float, *, margin: float, present: float | None) -> float:
    """``max(peak until now + lead + one bucket x margin, present demand)``, in the unit of demand."""
    return max(forecast_peak * margin, present or 0.0)


class HighestNeed:
    """The highest need of the last ``size`` decisions; while blind (None) the last ones stand."""

    def __init__(self, size: int) -> None:
        self._needs: deque[float] = deque(maxlen=max(1, size))

    def add(self, need: float | None) -> float:
        """Note a need and return what must be held; 0 before the first."""
        if need is not None:
            self._needs.append(need)
        return max(self._needs, default=0.0)
