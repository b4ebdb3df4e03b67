"""Days in a closed loop through the planner: `python -m bench.scaling_simulation [--short]`.

How long a day takes to play, and what each fault costs: load missed, replica-hours, the highest rung.
"""

import argparse
import math
import time

from bench.report import Report

from tidewheel.autoscaler.simulation.loop import simulate
from tidewheel.autoscaler.simulation.scenario import HOUR, Fault, FaultKind, Scenario
from tidewheel.autoscaler.version_plan import Bounds

FAULTS: dict[str, tuple[Fault, ...]] = {
    "calm": (),
    "metrics gone for an hour at the ramp": (Fault(kind=FaultKind.METRICS_GONE, start=7 * HOUR, end=8 * HOUR),),
    "weight store three times slower": (Fault(kind=FaultKind.SLOW_STORE, start=4 * HOUR, end=24 * HOUR, size=3),),
    "quota of 30": (Fault(kind=FaultKind.QUOTA, start=6 * HOUR, end=18 * HOUR, size=30),),
    "a third of the nodes gone": (Fault(kind=FaultKind.POOL_GONE, start=10 * HOUR, end=10.1 * HOUR, size=0.33),),
    "spot reclaimed at the peak": (Fault(kind=FaultKind.SPOT_RECLAIMED, start=12 * HOUR, end=12.1 * HOUR, size=0.25),),
    "five times the demand, unforecast": (Fault(kind=FaultKind.LOAD_TEST, start=9 * HOUR, end=11 * HOUR, size=5),),
}


def demand(at: float) -> float:
    """10,000 to 40,000 tok/s a day, with a ripple that no forecast knows."""
    ripple = 1 + 0.03 * math.sin(at / 613) * math.sin(at / 97)
    return (25_000 - 15_000 * math.cos(2 * math.pi * at / 86_400)) * ripple


def main() -> None:
    """Print each day."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the calm day alone")
    arguments = parser.parse_args()
    report = Report("scaling_simulation")
    for name, faults in FAULTS.items():
        if arguments.short and faults:
            continue
        began = time.perf_counter()
        record = simulate(Scenario(demand=demand, bounds=Bounds(maximum=200, spare=1), faults=faults))
        report.measure(name, "seconds_a_day", time.perf_counter() - began, "s")
        report.measure(name, "missed", 100 * record.missed_share, "%")
        report.measure(name, "replica_hours", record.replica_hours, "h")
        report.measure(name, "highest_rung", max(moment.rung for moment in record.moments), "rung")
        report.measure(name, "streams_cut", record.streams_cut, "replicas")


if __name__ == "__main__":
    main()
