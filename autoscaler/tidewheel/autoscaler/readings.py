"""When a measured number may be believed: missing is not zero, half the gateways are not half the demand."""

from collections import deque
from dataclasses import dataclass
from typing import Final

REPORTERS_SECONDS: Final = 600.0
ENOUGH_REPORTERS: Final = 0.8


@dataclass(frozen=True, slots=True)
class Credible:
    """Whether to believe, and why not."""

    believed: bool
    reason: str = ""


class Reporters:
    """How many gateways report, against how many did within the last ten minutes.

    Fewer than four fifths of them make the sum a lower bound, not a demand; after ten minutes they count as gone.
    """

    def __init__(self, *, window_seconds: float = REPORTERS_SECONDS) -> None:
        self._window = window_seconds
        self._seen: deque[tuple[float, int]] = deque()

    def check(self, now: float, count: int) -> Credible:
        """Note how many report now."""
        while self._seen and self._seen[0][0] <= now - self._window:
            self._seen.popleft()
        before = max((seen for _, seen in self._seen), default=0)
        self._seen.append((now, count))
        if count == 0:
            return Credible(False, "no gateway reports")
        if count < ENOUGH_REPORTERS * before:
            return Credible(False, f"only {count} of {before} gateways report")
        return Credible(True)
