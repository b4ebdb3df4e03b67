"""The loop itself: world, metrics, planner, orders; one tick after another."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tidewheel.autoscaler.cold_start import ColdStart, StartPath, lead_seconds, stuck_after_seconds
from tidewheel.autoscaler.ladder import LadderState, climb
from tidewheel.autoscaler.outlook import DemandOutlook, Outlook
from tidewheel.autoscaler.readings import Reporters
from tidewheel.autoscaler.simulation.fleet import Fleet
from tidewheel.autoscaler.simulation.scenario import Fault, FaultKind, Scenario
from tidewheel.autoscaler.units import BLOCK_TOKENS, Demand, Unit
from tidewheel.autoscaler.version_plan import plan_load, ready_within

_START_SPREAD: Final = 0.36
"""Sigma of the logarithm: p99 / p50 = 2.3, as measured for model loads."""
_ALL: Final = 10_000
_SPOT_NOTICE_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Moment:
    """What was so at one tick."""

    at: float
    demand: float
    ready: int
    ordered: int
    need: float
    blind: bool
    rung: int
    shortfall: int
    served: float


@dataclass(slots=True)
class Record:
    """A day that was played."""

    moments: list[Moment] = field(default_factory=list)
    streams_cut: int = 0
    streams_moved: int = 0
    replaced: int = 0
    leads: list[float] = field(default_factory=list)

    @property
    def missed_share(self) -> float:
        """Share of the demand that found no capacity."""
        offered = sum(moment.demand for moment in self.moments)
        return 1.0 - sum(moment.served for moment in self.moments) / offered if offered else 0.0

    @property
    def replica_hours(self) -> float:
        """Ordered, those that start included."""
        tick = self.moments[1].at - self.moments[0].at
        return sum(moment.ordered for moment in self.moments) * tick / 3600

    @property
    def changes(self) -> int:
        """How often the order changed."""
        orders = [moment.ordered for moment in self.moments]
        return sum(after != before for before, after in itertools.pairwise(orders))

    def between(self, start: float, end: float) -> list[Moment]:
        """The moments of a span."""
        return [moment for moment in self.moments if start <= moment.at < end]


class Simulation:
    """Plays one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._random = np.random.default_rng(scenario.seed)
        self._fleet = Fleet(start=self._start_time)
        self._outlook = DemandOutlook(scenario.outlook, lead_seconds=lead_seconds(self._samples()))
        self._reporters = Reporters()
        self._ladder = LadderState()
        self._bucket: list[Demand | None] = []
        self._record = Record()

    def run(self) -> Record:
        """The days before are shown to the forecaster; then the day, tick by tick."""
        scenario = self._scenario
        self._show_history()
        first = self._order_size(self._look(0.0, self._read(0.0)))
        self._fleet.order(first, -1e6, allowed=first, stream_seconds=0.0, node_wait=0.0)
        self._fleet.starts.clear()
        at = 0.0
        while at < scenario.seconds:
            self._tick(at)
            at += scenario.tick_seconds
        self._record.streams_cut, self._record.streams_moved = self._fleet.cut, self._fleet.moved
        self._record.replaced = self._fleet.replaced
        return self._record

    def _tick(self, at: float) -> None:
        scenario, fleet = self._scenario, self._fleet
        fleet.advance(at, scenario.tick_seconds)
        self._break(at)
        reading = self._read(at)
        self._close_bucket(at, reading)
        outlook = self._look(at, reading)
        wanted = self._order_size(outlook)
        allowed = self._allowed(at)
        fleet.admit(at, allowed)
        fleet.order(
            wanted,
            at,
            allowed=allowed,
            stream_seconds=scenario.stream_seconds,
            node_wait=scenario.node_wait_seconds,
        )
        fleet.replace_stuck(at, stuck_after_seconds(self._samples()))
        self._note(at, outlook, wanted)

    def _look(self, at: float, reading: Demand | None) -> Outlook:
        lead = lead_seconds(self._samples())
        if self._outlook.needs_lead(lead):
            self._outlook = self._outlook.with_lead(lead)
            self._record.leads.append(lead)
        return self._outlook.look(now=at, present=reading)

    def _order_size(self, outlook: Outlook) -> int:
        plan = plan_load(outlook, self._scenario.capacity, self._scenario.bounds)
        return plan.size(_ALL, present=len(self._fleet.live()))

    def _note(self, at: float, outlook: Outlook, wanted: int) -> None:
        scenario, fleet = self._scenario, self._fleet
        plan = plan_load(outlook, scenario.capacity, scenario.bounds)
        ready = fleet.ready(at)
        expected = [found.ready_at for found in fleet.pending(at)]
        step = climb(
            self._ladder,
            now=at,
            forecast_need=plan.expected_whole,
            forecast_supply=float(ready_within(ready, expected, at + outlook.lead_seconds)),
            present_need=plan.present_whole,
            present_supply=float(ready),
            settings=scenario.ladder,
        )
        self._ladder = step.state
        demand = self._demand(at)
        self._record.moments.append(
            Moment(
                at=at,
                demand=demand,
                ready=ready,
                ordered=len(fleet.live()),
                need=outlook.of(Unit.DECODE).need,
                blind=outlook.is_blind,
                rung=int(self._ladder.rung),
                shortfall=max(plan.shortfall(_ALL), wanted - sum(math.isfinite(f.ready_at) for f in fleet.live())),
                served=min(demand, ready * scenario.capacity.decode),
            )
        )

    def _demand(self, at: float) -> float:
        factor = 1.0
        for kind in (FaultKind.LOAD_TEST, FaultKind.MARKED_LOAD_TEST):
            if fault := self._scenario.active(at, kind):
                factor *= fault.size
        return factor * self._scenario.demand(at)

    def _read(self, at: float) -> Demand | None:
        """What Prometheus would say of the last minute, and whether it may be believed."""
        scenario = self._scenario
        if scenario.active(at, FaultKind.METRICS_GONE):
            return None
        rate = self._demand(at)
        reporting = scenario.gateways
        if fault := scenario.active(at, FaultKind.GATEWAYS_UNSCRAPED):
            reporting = round(scenario.gateways * (1 - fault.size))
            rate *= 1 - fault.size
        if not self._reporters.check(at, reporting).believed:
            return None
        if scenario.active(at, FaultKind.COUNTER_RESET):
            rate = 0.0
        if fault := scenario.active(at, FaultKind.RETRIES):
            rate *= fault.size
        return self._as_demand(rate)

    def _as_demand(self, rate: float) -> Demand:
        scenario = self._scenario
        streams = rate * scenario.stream_seconds / 500.0
        return Demand(prefill=rate * scenario.prompt_per_output, decode=rate, kv_blocks=streams * 1_000 / BLOCK_TOKENS)

    def _close_bucket(self, at: float, reading: Demand | None) -> None:
        self._bucket.append(reading)
        step = self._scenario.outlook.step_seconds
        bucket = int(at // step)
        if (at + self._scenario.tick_seconds) // step == bucket:
            return
        known = [found for found in self._bucket if found is not None]
        flagged = self._scenario.active(at, FaultKind.MARKED_LOAD_TEST) is not None
        mean = self._mean(known) if len(known) >= 0.5 * len(self._bucket) else None
        self._bucket.clear()
        self._outlook.observe(bucket, mean, flagged=flagged)

    def _mean(self, known: list[Demand]) -> Demand:
        return self._as_demand(sum(found.decode for found in known) / len(known))

    def _show_history(self) -> None:
        scenario = self._scenario
        step = scenario.outlook.step_seconds
        for bucket in range(-int(scenario.history_days * 86_400 // step), 0):
            self._outlook.observe(bucket, self._as_demand(scenario.demand((bucket + 0.5) * step)))

    def _samples(self) -> list[ColdStart]:
        return [ColdStart(total=seconds, path=StartPath.COLD) for seconds in self._fleet.starts[-20:]] or [
            ColdStart(total=self._scenario.start_seconds, path=StartPath.COLD)
        ] * 3

    def _start_time(self, at: float) -> float:
        scenario = self._scenario
        seconds = scenario.start_seconds * math.exp(float(self._random.normal(0.0, _START_SPREAD)))
        if fault := scenario.active(at, FaultKind.SLOW_STORE):
            seconds *= fault.size
        if fault := scenario.active(at, FaultKind.STUCK_PENDING):
            seconds += fault.end - at
        return seconds

    def _allowed(self, at: float) -> int:
        fault = self._scenario.active(at, FaultKind.QUOTA)
        return int(fault.size) if fault else 1_000_000

    def _break(self, at: float) -> None:
        for fault in self._scenario.faults:
            if self._begins(fault, at):
                if fault.kind is FaultKind.POOL_GONE:
                    self._fleet.lose(fault.size, at, notice=0.0)
                elif fault.kind is FaultKind.SPOT_RECLAIMED:
                    self._fleet.lose(fault.size, at, notice=_SPOT_NOTICE_SECONDS)

    def _begins(self, fault: Fault, at: float) -> bool:
        return at <= fault.start < at + self._scenario.tick_seconds


def simulate(scenario: Scenario) -> Record:
    """Play a scenario."""
    return Simulation(scenario).run()
