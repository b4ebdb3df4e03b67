"""How every benchmark prints: first the machine, then one JSON line per measurement."""

import json
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path


class Report:
    """Prints the machine at once, and measurements as they come, so that a run that is cut short says what it has."""

    def __init__(self, bench: str) -> None:
        self._bench = bench
        print(json.dumps({"bench": bench, "machine": describe_machine()}), flush=True)

    def measure(self, case: str, metric: str, value: float, unit: str) -> None:
        """One measurement."""
        line = {"bench": self._bench, "case": case, "metric": metric, "value": round(value, 3), "unit": unit}
        print(json.dumps(line), flush=True)

    def distribution(
        self, case: str, metric: str, values: Sequence[float], unit: str, *, shares: Sequence[float] = (0.5, 0.99)
    ) -> None:
        """The quantiles that ``shares`` name, the worst one, and how many values they come from."""
        for share in shares:
            self.measure(case, f"{metric}_p{share * 100:g}", quantile(values, share), unit)
        self.measure(case, f"{metric}_max", max(values), unit)
        self.measure(case, f"{metric}_samples", len(values), "count")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed (nearest rank: no value is made up)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def describe_machine() -> dict[str, object]:
    """What a reader needs to judge a figure; no names of people or hosts."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
