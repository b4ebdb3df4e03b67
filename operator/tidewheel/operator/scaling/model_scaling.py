"""One model's scaling: its demand so far, its ladder, and the advice of each moment. No I/O; the clock is passed in."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidewheel.autoscaler.capacity import (
    CapacitySource,
    EngineReport,
    ReplicaCapacity,
    Shape,
    capacity_from_report,
    capacity_from_shape,
)
from tidewheel.autoscaler.cold_start import lead_seconds, start_eta
from tidewheel.autoscaler.errors import EventError
from tidewheel.autoscaler.eta import Eta, relief_eta
from tidewheel.autoscaler.events import DeclaredEvent
from tidewheel.autoscaler.forecast.calendar import DAY_SECONDS
from tidewheel.autoscaler.ladder import LadderState, Rung, climb
from tidewheel.autoscaler.outlook import DemandOutlook, Outlook, OutlookSettings
from tidewheel.autoscaler.readings import Reporters
from tidewheel.autoscaler.units import Demand, Mix, Unit, demand_from_rates, with_open_requests
from tidewheel.autoscaler.version_plan import Bounds, LoadPlan, Mode, plan_load, ready_within
from tidewheel.crds.modelversion import Dtype, ModelVersionSpec
from tidewheel.crds.scaling import Scaling
from tidewheel.operator.moments import parse_moment
from tidewheel.operator.planning.records import Picture, PodRecord, VersionRecord
from tidewheel.operator.planning.split import shares
from tidewheel.operator.scaling.advice import ModelAdvice, VersionAdvice
from tidewheel.operator.scaling.demand import DemandReading, OfferedLoad
from tidewheel.operator.scaling.settings import ScalingSettings
from tidewheel.operator.scaling.starts import as_starts

_CACHED_SAMPLES: Final = 60
_DEFAULT_MIX: Final = Mix(prompt_tokens=500, output_tokens=250)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the loop knows beside the picture."""

    reports: Mapping[str, EngineReport]
    """By version."""
    free_gpus: int | None = None
    other_writers: Mapping[str, str] | None = None
    leaving_nodes: frozenset[str] = frozenset()


class ModelScaling:
    """Keeps what is learnt about one model. Ask ``advise`` once per period.

    ``knows_past`` is False while somebody is still to call ``learn_past``: until then nothing shrinks, because a ramp
    that history announces may be near.
    """

    def __init__(self, settings: ScalingSettings, *, knows_past: bool = True) -> None:
        self._settings = settings
        self.knows_past = knows_past
        self.outlook: DemandOutlook | None = None
        self._learnt: tuple[DemandOutlook, bool] | None = None
        self._reporters = Reporters()
        self._ladder: LadderState | None = None
        self._open: list[tuple[int, Demand | None]] = []
        """Of buckets that have not been closed: their numbers, and what was seen."""
        self._cached: deque[float] = deque(maxlen=_CACHED_SAMPLES)
        self._capacity: dict[str, ReplicaCapacity] = {}
        self._mix = _DEFAULT_MIX

    def has_ended(self, now: float) -> bool:
        """Whether a bucket has ended since the last look: the look that closes it forecasts anew, and costs more."""
        return bool(self._open) and self._open[0][0] < int(now // self._settings.step_seconds)

    def advise(
        self, picture: Picture, reading: DemandReading, around: Surroundings, *, may_close: bool = True
    ) -> ModelAdvice | None:
        """None where no version has ``scaling``. Without ``may_close`` an ended bucket waits for its turn."""
        scaled = {name: found for name, found in picture.versions.items() if found.spec and found.spec.scaling}
        if not scaled:
            return None
        now = picture.now.timestamp()
        self._take_over()
        demand, reason = self._demand(picture, reading, now, next(iter(scaled.values())))
        lead = max(self._lead(version) for version in scaled.values())
        demand_outlook = self._outlook(picture, scaled, lead)
        self._note(demand_outlook, now, demand, may_close=may_close)
        outlook = demand_outlook.look(now=now, present=demand)
        self._learn_capacity(scaled, around)
        versions = {name: self._version(found, picture, outlook, around) for name, found in scaled.items()}
        ladder = self._climb(picture, versions, now)
        relief = self._relief(picture, versions, now)
        forecast = demand_outlook.forecast(Unit.DECODE)
        return ModelAdvice(
            outlook=outlook,
            forecast_by=forecast.weights[0][0] if forecast is not None and forecast.weights else "",
            blind_reason=reason or ("" if self.knows_past else "history is still being read"),
            versions=versions,
            rung=int(ladder[0]),
            rung_message=ladder[1],
            relief=relief,
            leaving_nodes=around.leaving_nodes,
        )

    def learn_past(self, picture: Picture, first: int, demands: Sequence[Demand | None], *, complete: bool) -> None:
        """What was before: takes a second or two, and may run beside ``advise``, which takes it over when it is there.

        Not ``complete``: better than nothing, and asked for again.
        """
        scaled = {name: found for name, found in picture.versions.items() if found.spec and found.spec.scaling}
        if not scaled:
            return
        lead = max(self._lead(version) for version in scaled.values())
        past = DemandOutlook(self._wanted_settings(picture, scaled), lead_seconds=lead)
        past.learn(first, demands)
        self._learnt = past, complete

    def _take_over(self) -> None:
        if self._learnt is None:
            return
        (past, complete), self._learnt = self._learnt, None
        if self.outlook is not None:
            past.goes_on(self.outlook)
        self.outlook = past
        self.knows_past = self.knows_past or complete

    def _demand(
        self, picture: Picture, reading: DemandReading, now: float, version: VersionRecord
    ) -> tuple[Demand | None, str]:
        """Present demand, or why it is not known."""
        load = reading.models.get(picture.key)
        if load is None:
            return None, reading.error or "no gateway has series of this model"
        doubt = self._reporters.check(now, load.reporters)
        if not doubt.believed:
            return None, doubt.reason
        self._learn_mix(load)
        assert version.spec is not None
        slo = version.spec.slo
        demand = demand_from_rates(
            prompt_rate=load.prompt_rate,
            output_rate=load.output_rate,
            mix=self._mix,
            tpot_seconds=slo.tpot_ms / 1e3,
            ttft_seconds=slo.ttft_ms / 1e3,
        )
        return with_open_requests(demand, load.in_flight, mix=self._mix, tpot_seconds=slo.tpot_ms / 1e3), ""

    def _learn_mix(self, load: OfferedLoad) -> None:
        """The cached share is the lowest of the last readings: caches of new replicas are empty."""
        if load.prompt_tokens > 0:
            self._cached.append(load.cached_share)
        self._mix = Mix(
            prompt_tokens=load.prompt_tokens or self._mix.prompt_tokens,
            output_tokens=load.output_tokens or self._mix.output_tokens,
            output_tokens_p90=load.output_tokens_p90 or self._mix.output_tokens_p90,
            cached_share=min(self._cached, default=0.0) if len(self._cached) >= 3 else 0.0,
        )

    def _lead(self, version: VersionRecord) -> float:
        starts = as_starts(version.status.cold_start)
        return lead_seconds(starts, prior_seconds=self._settings.cold_start_prior_seconds)

    def _wanted_settings(self, picture: Picture, scaled: Mapping[str, VersionRecord]) -> OutlookSettings:
        """Those of the version with most of the traffic."""
        weights = shares(picture.table)
        leading = max(scaled.values(), key=lambda found: weights.get(found.version, 0))
        assert leading.spec is not None
        assert leading.spec.scaling is not None
        return outlook_settings(leading.spec.scaling, step_seconds=self._settings.step_seconds)

    def _outlook(self, picture: Picture, scaled: Mapping[str, VersionRecord], lead: float) -> DemandOutlook:
        wanted = self._wanted_settings(picture, scaled)
        if self.outlook is None:
            self.outlook = DemandOutlook(wanted, lead_seconds=lead)
        elif self.outlook.settings != wanted or self.outlook.needs_lead(lead):
            self.outlook = self.outlook.with_settings(wanted, lead_seconds=lead)
        return self.outlook

    def _note(self, outlook: DemandOutlook, now: float, demand: Demand | None, *, may_close: bool) -> None:
        bucket = int(now // self._settings.step_seconds)
        while may_close and self._open and self._open[0][0] < bucket:
            self._close(outlook, self._open[0][0])
        self._open.append((bucket, demand))

    def _close(self, outlook: DemandOutlook, bucket: int) -> None:
        """An ended bucket goes to the forecaster: the mean of what was seen, or a hole if that was less than half."""
        seen = [demand for number, demand in self._open if number == bucket]
        self._open = [entry for entry in self._open if entry[0] != bucket]
        expected = self._settings.step_seconds / self._settings.period_seconds
        known = [found for found in seen if found is not None]
        enough = len(known) >= min(0.5 * expected, 0.5 * len(seen) + 0.5)
        if outlook.next_bucket is None or bucket >= outlook.next_bucket:
            outlook.observe(bucket, _mean(known) if enough else None)

    def _version(
        self, version: VersionRecord, picture: Picture, outlook: Outlook, around: Surroundings
    ) -> VersionAdvice:
        assert version.spec is not None
        capacity = self._capacity_of(version, picture)
        writer = (around.other_writers or {}).get(version.meta.name, "")
        bounds = bounds_of(version.spec, live=_live(picture, version.version), free_gpus=around.free_gpus)
        if writer:
            bounds = replace(bounds, mode=Mode.ADVISE)
        load = plan_load(outlook, capacity, bounds)
        return VersionAdvice(
            load=load if self.knows_past else replace(load, blind=True),
            capacity=capacity,
            lead_seconds=self._lead(version),
            other_writer=writer,
        )

    def _learn_capacity(self, scaled: Mapping[str, VersionRecord], around: Surroundings) -> None:
        """The best known of each version: measured stays until it is measured anew."""
        mix = self._mix
        for name, version in scaled.items():
            assert version.spec is not None
            known = self._capacity.get(version.digest) or _published(version)
            report = around.reports.get(name)
            if report is not None:
                found = capacity_from_report(
                    report,
                    tpot_seconds=version.spec.slo.tpot_ms / 1e3,
                    context_tokens=_context(mix),
                    prompt_per_output=mix.prompt_tokens * (1 - mix.cached_share) / max(mix.output_tokens, 1.0),
                )
                if found is not None and (known is None or _better(found, known)):
                    known = found
            if known is not None:
                self._capacity[version.digest] = known

    def _capacity_of(self, version: VersionRecord, picture: Picture) -> ReplicaCapacity:
        """What is known; else a prior: a sibling's with the same replica, the declared shape's roofline, a guess."""
        assert version.spec is not None
        known = self._capacity.get(version.digest)
        if known is not None:
            return known
        for other in picture.versions.values():
            sibling = self._capacity.get(other.digest)
            if sibling is not None and other.spec is not None and _is_alike(version.spec, other.spec):
                return replace(sibling, source=CapacitySource.PRIOR)
        seconds = version.spec.slo.tpot_ms / 1e3
        shape = declared_shape(version.spec)
        if shape is not None:
            return capacity_from_shape(shape, tpot_seconds=seconds, context_tokens=_context(self._mix))
        decode = self._settings.prior_decode_tokens
        return ReplicaCapacity(
            prefill=10 * decode,
            decode=decode,
            kv_tokens=100 * decode,
            max_streams=int(decode * seconds) or 1,
            source=CapacitySource.PRIOR,
        )

    def _climb(self, picture: Picture, versions: Mapping[str, VersionAdvice], now: float) -> tuple[Rung, str]:
        """Over the versions that take traffic, each with its share; the rung in the table is where it stands."""
        table = picture.table.spec if picture.table is not None else None
        if table is None:
            return Rung.NONE, ""
        if self._ladder is None:
            self._ladder = LadderState(rung=Rung(table.rung), since=now)
        weights = {name: share for name, share in shares(picture.table).items() if share and name in versions}
        if not weights:
            return self._ladder.rung, "no version that takes traffic is scaled"
        need_ahead = need_now = supply_ahead = supply_now = 0.0
        for name, share in weights.items():
            advice, load = versions[name], versions[name].load
            ready, expected = _supply(picture, name, advice.lead_seconds)
            need_ahead += load.expected_whole * share / 10_000
            need_now += load.present_whole * share / 10_000
            supply_ahead += ready_within(ready, expected, now + advice.lead_seconds + self._settings.period_seconds)
            supply_now += ready
        # What is neither ready nor on its way and yet allowed will be ordered in this very round.
        supply_ahead = max(supply_ahead, float(sum(_allowed(versions[name].load, weights[name]) for name in weights)))
        step = climb(
            self._ladder,
            now=now,
            forecast_need=need_ahead,
            forecast_supply=supply_ahead,
            present_need=need_now,
            present_supply=supply_now,
            settings=self._settings.ladder,
        )
        if not any(advice.load.blind for advice in versions.values()) or step.state.rung > self._ladder.rung:
            self._ladder = step.state
        return self._ladder.rung, step.message

    def _relief(self, picture: Picture, versions: Mapping[str, VersionAdvice], now: float) -> Eta:
        """Over the versions that take traffic; what is allowed and has no pod yet is ordered in this very round."""
        need, ready, arriving = 0.0, 0, list[tuple[float, float]]()
        for name, share in shares(picture.table).items():
            if not share or name not in versions:
                continue
            load = versions[name].load
            starts = as_starts(picture.versions[name].status.cold_start)
            p50, p90 = start_eta(starts, prior_seconds=self._settings.cold_start_prior_seconds)
            live = [pod for pod in picture.pods_of(name) if pod.is_live]
            begun = [
                pod.meta.created.timestamp() - now for pod in live if not pod.ready and pod.meta.created is not None
            ]
            begun += [0.0] * (_allowed(load, share) - len(live))
            need += load.present_whole * share / 10_000
            ready += sum(pod.ready for pod in live)
            arriving += [(at + p50, at + p90) for at in begun]
        return relief_eta(need=need, ready=ready, arriving=arriving)


def outlook_settings(scaling: Scaling, *, step_seconds: int) -> OutlookSettings:
    """From the spec; a zone that this machine does not know is UTC, an event that contradicts itself is left out."""
    events: list[DeclaredEvent] = []
    for entry in scaling.events:
        try:
            events.append(
                DeclaredEvent(
                    name=entry.name,
                    start=parse_moment(entry.start).timestamp(),
                    end=parse_moment(entry.end).timestamp(),
                    multiplier=entry.multiplier,
                    ramp_seconds=entry.ramp_seconds,
                    confidence=entry.confidence,
                )
            )
        except EventError:
            continue
    try:
        zone = None if scaling.time_zone == "UTC" else ZoneInfo(scaling.time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        zone = None
    return OutlookSettings(
        step_seconds=step_seconds,
        quantile=scaling.quantile,
        headroom=None if scaling.headroom_percent is None else scaling.headroom_percent / 100,
        seasons=tuple(season.value for season in scaling.seasons),
        zone=zone,
        hold_seconds=float(scaling.hold_seconds),
        events=tuple(events),
    )


def bounds_of(spec: ModelVersionSpec, *, live: int, free_gpus: int | None) -> Bounds:
    """From the spec and what is left of the operator's own budget."""
    scaling = spec.scaling
    assert scaling is not None
    each = max(spec.replica.gpus, 1)
    limits = [] if scaling.gpu_budget is None else [scaling.gpu_budget // each]
    if free_gpus is not None:
        limits.append(live + max(free_gpus, 0) // each)
    return Bounds(
        minimum=scaling.min_replicas,
        maximum=scaling.max_replicas,
        spare=scaling.spare,
        budget=min(limits) if limits else None,
        mode=Mode(scaling.mode.value),
        scale_to_zero=scaling.scale_to_zero,
    )


def keep_days(step_seconds: int) -> int:
    """Buckets of history that are kept beyond a restart."""
    return 14 * DAY_SECONDS // step_seconds


def _mean(known: Sequence[Demand]) -> Demand | None:
    if not known:
        return None
    count = len(known)
    return Demand(
        prefill=sum(found.prefill for found in known) / count,
        decode=sum(found.decode for found in known) / count,
        kv_blocks=sum(found.kv_blocks for found in known) / count,
    )


def _allowed(load: LoadPlan, share: int) -> int:
    return min(load.wanted(share), load.bounds.ceiling)


def _live(picture: Picture, version: str) -> int:
    return sum(pod.is_live for pod in picture.pods_of(version))


def _supply(picture: Picture, version: str, lead: float) -> tuple[int, list[float]]:
    """Replicas that serve, and when the others are expected to: their order and the measured lead."""
    pods: Sequence[PodRecord] = [pod for pod in picture.pods_of(version) if pod.is_live]
    expected = [pod.meta.created.timestamp() + lead for pod in pods if not pod.ready and pod.meta.created is not None]
    return sum(pod.ready for pod in pods), expected


def _context(mix: Mix) -> float:
    """Tokens that a running request holds, on average."""
    return mix.prompt_tokens + 0.5 * mix.output_tokens


def _is_alike(version: ModelVersionSpec, other: ModelVersionSpec) -> bool:
    """Versions of one model on the same replicas, with the same promise, are first taken to carry the same."""
    return (version.replica, version.slo) == (other.replica, other.slo)


def declared_shape(spec: ModelVersionSpec) -> Shape | None:
    """All GPUs of a replica together; weights and KV in the engine's number format."""
    found = spec.scaling.shape if spec.scaling is not None else None
    if found is None:
        return None
    gpus = max(spec.replica.gpus, 1)
    size = 4.0 if spec.engine.dtype is Dtype.FLOAT32 else 2.0
    return Shape(
        weight_bytes=found.parameters_billions * 1e9 * size,
        kv_bytes_per_token=2.0 * found.layers * found.kv_heads * found.head_dimension * size,
        memory_bytes=gpus * found.gpu_memory_gigabytes * 1e9,
        bandwidth=gpus * found.gpu_terabytes_per_second * 1e12,
        flops=gpus * found.gpu_teraflops * 1e12,
    )


def _published(version: VersionRecord) -> ReplicaCapacity | None:
    """What the status says, from before this operator began; a prior is worth nothing."""
    found = version.status.capacity
    if found is None or found.source == CapacitySource.PRIOR:
        return None
    return ReplicaCapacity(
        prefill=float(found.prefill_tokens_per_second),
        decode=float(found.decode_tokens_per_second),
        kv_tokens=float(found.kv_tokens),
        max_streams=found.max_streams,
        source=CapacitySource(found.source),
    )


_CHANGE: Final = 0.1


def _better(found: ReplicaCapacity, known: ReplicaCapacity) -> bool:
    """A better source, or one as good that says something else by a tenth: capacity does not flicker."""
    order = list(CapacitySource)
    if order.index(found.source) != order.index(known.source):
        return order.index(found.source) > order.index(known.source)
    return abs(found.decode - known.decode) > _CHANGE * known.decode
