"""A planning cycle over very many versions: `python -m bench.scaling_cycle [--short]`.

1,000 models of one version each, 10,000 replicas in all, two weeks of history. A usual cycle looks at present demand;
once per bucket it also takes in what has ended and forecasts anew, for 150 models a cycle.
"""

import argparse
import copy
import resource
import time
from dataclasses import dataclass

import numpy as np
from bench.report import Report

from tidewheel.autoscaler.capacity import CapacitySource, ReplicaCapacity
from tidewheel.autoscaler.ladder import LadderSettings, LadderState, climb
from tidewheel.autoscaler.outlook import DemandOutlook, OutlookSettings
from tidewheel.autoscaler.units import Demand
from tidewheel.autoscaler.version_plan import Bounds, plan_load, ready_within
from tidewheel.operator.scaling.loop import CLOSED_AT_ONCE

STEP = 300
LEVEL = 5_000.0
"""Tokens a second of a model, on average."""
CAPACITY = ReplicaCapacity(
    prefill=4_000, decode=1_000, kv_tokens=400_000, max_streams=100, source=CapacitySource.MEASURED
)


@dataclass(slots=True)
class Planned:
    """One model."""

    outlook: DemandOutlook
    level: float
    ladder: LadderState
    present: int = 10


def _demand(level: float, bucket: int) -> Demand:
    rate = level * (1.0 + 0.5 * float(np.sin(2 * np.pi * bucket / 288)))
    return Demand(prefill=2 * rate, decode=rate, kv_blocks=rate)


def _cycle(models: list[Planned], now: float, bucket: int) -> int:
    total = 0
    for model in models:
        outlook = model.outlook.look(now=now, present=_demand(model.level, bucket))
        plan = plan_load(outlook, CAPACITY, Bounds(maximum=100))
        expected = [now + 30.0 * index for index in range(model.present)]
        step = climb(
            model.ladder,
            now=now,
            forecast_need=plan.expected_whole,
            forecast_supply=float(ready_within(model.present, expected, now + 300)),
            present_need=plan.present_whole,
            present_supply=float(model.present),
            settings=LadderSettings(),
        )
        model.ladder = step.state
        total += plan.size(10_000, present=model.present)
    return total


def main() -> None:
    """Print times and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="50 models, two days of history")
    parser.add_argument("--models", type=int, default=1_000)
    parser.add_argument("--buckets", type=int, default=4_032, help="buckets of history of each model")
    arguments = parser.parse_args()
    count = 50 if arguments.short else arguments.models
    buckets = 576 if arguments.short else arguments.buckets
    report = Report("scaling_cycle")
    case = f"{count} models, {10 * count} replicas"
    learnt = DemandOutlook(OutlookSettings(step_seconds=STEP), lead_seconds=300)
    learnt.learn(0, [_demand(LEVEL, bucket) for bucket in range(buckets)])
    # Each model has arrays of its own; that they begin with the same numbers changes neither time nor memory.
    models = [Planned(copy.deepcopy(learnt), LEVEL + index, LadderState()) for index in range(count)]
    now = float(buckets * STEP)
    cycles = []
    for turn in range(5):
        began = time.perf_counter()
        _cycle(models, now + 15 * turn, buckets)
        cycles.append(time.perf_counter() - began)
    closing = []
    for first in range(0, count, CLOSED_AT_ONCE):
        began = time.perf_counter()
        for model in models[first : first + CLOSED_AT_ONCE]:
            model.outlook.observe(buckets, _demand(model.level, buckets))
        _cycle(models, now + 75, buckets)
        closing.append(time.perf_counter() - began)
    report.distribution(case, "cycle_seconds", cycles, "s", shares=(0.5,))
    report.distribution(case, "closing_cycle_seconds", closing, "s", shares=(0.5,))
    report.measure(case, "memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB")


if __name__ == "__main__":
    main()
