"""How much of each unit a model needs from now until a replica ordered now would serve, and why so much."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from zoneinfo import ZoneInfo

from tidewheel.autoscaler.events import DeclaredEvent, checked_against, event_factor
from tidewheel.autoscaler.forecast.calendar import Calendar
from tidewheel.autoscaler.forecast.combination import Forecast, Forecaster
from tidewheel.autoscaler.margin import Margin
from tidewheel.autoscaler.need import HOLD_SECONDS
from tidewheel.autoscaler.units import Demand, Unit

CORRECTION_FROM: Final = 1.1
"""Present demand this far above its forecast lifts the whole future."""
CORRECTION_KEEPS: Final = 0.7
"""Of the (logarithmic) correction, per bucket further ahead."""
LARGEST_CORRECTION: Final = 4.0
SPIKE_FACTOR: Final = 2.0
SPIKE_SECONDS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlookSettings:
    """How a model's demand is forecast."""

    step_seconds: int = 300
    quantile: float = 0.99
    headroom: float | None = None
    """A fixed margin such as 0.2, in place of the calibrated one."""
    seasons: tuple[str, ...] = ("daily", "weekly")
    zone: ZoneInfo | None = None
    hold_seconds: float = HOLD_SECONDS
    events: tuple[DeclaredEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOutlook:
    """One unit: what is, what is forecast, what is needed. All in the unit itself."""

    unit: Unit
    present: float | None
    forecast: float
    """At now + lead, events included, without margin."""
    peak: float
    """The highest until now + lead + one bucket, corrected."""
    margin: Margin
    correction: float
    need: float
    """``max(peak x margin, present)``, and no less than what was needed within the hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """All units at one moment. ``blind_seconds`` is the age of the last demand known, 0 while it is fresh."""

    at: float
    lead_seconds: float
    units: tuple[UnitOutlook, ...]
    blind_seconds: float
    spike: bool
    events: tuple[str, ...] = ()

    @property
    def is_blind(self) -> bool:
        """Demand is not known now: nothing may shrink."""
        return self.blind_seconds > 0

    def of(self, unit: Unit) -> UnitOutlook:
        """One unit's."""
        return next(found for found in self.units if found.unit is unit)


@dataclass(slots=True)
class _Held:
    needs: deque[tuple[float, float]] = field(default_factory=deque)

    def highest(self, at: float, need: float, hold_seconds: float) -> float:
        while self.needs and self.needs[0][0] < at - hold_seconds:
            self.needs.popleft()
        while self.needs and self.needs[-1][1] <= need:
            self.needs.pop()
        self.needs.append((at, need))
        return self.needs[0][1]


class DemandOutlook:
    """One model. Give it each ended bucket once, in order, and ask whenever a decision is due.

    KV blocks are not forecast of their own: they follow decode, at the present blocks per token a second.
    """

    def __init__(self, settings: OutlookSettings, *, lead_seconds: float) -> None:
        self.settings = settings
        self.lead_seconds = lead_seconds
        self.calendar = Calendar(settings.step_seconds, settings.zone)
        self._forecasters = {unit: self._forecaster() for unit in (Unit.PREFILL, Unit.DECODE)}
        self._held = {unit: _Held() for unit in Unit}
        self._blocks_per_decode = 0.0
        self._known_at: float | None = None
        self._recent: deque[tuple[float, float]] = deque()

    @property
    def next_bucket(self) -> int | None:
        """The bucket to give next; None before the first."""
        history = self._forecasters[Unit.DECODE].history
        return history.end if history.length else None

    @property
    def lead_buckets(self) -> int:
        """The lead as the forecasters take it."""
        return self._forecasters[Unit.DECODE].lead_buckets

    def forecast(self, unit: Unit) -> Forecast | None:
        """The forecast behind the outlook; None before the first bucket."""
        forecaster = self._forecasters.get(unit, self._forecasters[Unit.DECODE])
        return forecaster.forecast() if forecaster.history.length else None

    def recent_buckets(self, unit: Unit, count: int) -> list[float | None]:
        """The last means kept; None for holes and flagged buckets."""
        history = self._forecasters[unit].history
        begin = max(0, history.length - count)
        pairs = zip(history.values[begin : history.length], history.usable[begin : history.length], strict=True)
        return [float(value) if usable else None for value, usable in pairs]

    def observe(self, bucket: int, demand: Demand | None, *, flagged: bool = False) -> None:
        """The mean of a bucket that has ended; None where it is missing, which is not zero."""
        flagged = flagged or self._is_flagged(bucket)
        for unit, forecaster in self._forecasters.items():
            forecaster.observe(bucket, demand.of(unit) if demand else None, flagged=flagged)
            forecaster.forecast()

    def learn(self, first: int, demands: Sequence[Demand | None]) -> None:
        """Many ended buckets from ``first`` on, at a fraction of the cost of observing each."""
        flagged = [self._is_flagged(first + index) for index in range(len(demands))]
        for unit, forecaster in self._forecasters.items():
            values = [demand.of(unit) if demand else None for demand in demands]
            forecaster.learn(first, values, flagged)

    def goes_on(self, since: "DemandOutlook") -> None:
        """Take over what another outlook has seen of the present while this one was learning the past."""
        self._held, self._recent = since._held, since._recent
        self._blocks_per_decode, self._known_at = since._blocks_per_decode, since._known_at
        if since.next_bucket is None:
            return
        count = since.next_bucket - (self.next_bucket or 0)
        if count <= 0:
            return
        columns = (since.recent_buckets(unit, count) for unit in (Unit.PREFILL, Unit.DECODE))
        pairs = list(zip(*columns, strict=True))
        for offset, (prefill, decode) in enumerate(pairs):
            known = prefill is not None and decode is not None
            demand = Demand(prefill=prefill or 0.0, decode=decode or 0.0, kv_blocks=0.0) if known else None
            self.observe(since.next_bucket - len(pairs) + offset, demand)

    def with_lead(self, lead_seconds: float) -> "DemandOutlook":
        """The same history looked at with another lead: errors are per lead, and are worked out again from it."""
        return self.with_settings(self.settings, lead_seconds=lead_seconds)

    def with_settings(self, settings: OutlookSettings, *, lead_seconds: float) -> "DemandOutlook":
        """The same history under other settings; its buckets keep their length."""
        other = DemandOutlook(replace(settings, step_seconds=self.settings.step_seconds), lead_seconds=lead_seconds)
        other._held, other._recent = self._held, self._recent
        other._blocks_per_decode, other._known_at = self._blocks_per_decode, self._known_at
        for unit, forecaster in self._forecasters.items():
            same = (settings.quantile, settings.seasons, settings.zone) == (
                self.settings.quantile,
                self.settings.seasons,
                self.settings.zone,
            )
            if same and self.calendar.buckets(lead_seconds) == self.lead_buckets:
                other._forecasters[unit] = forecaster
            else:
                other._forecasters[unit] = forecaster.replayed(other._forecasters[unit])
        return other

    def needs_lead(self, lead_seconds: float) -> bool:
        """Whether ``lead_seconds`` is another lead: any longer one in buckets, a shorter one only well below."""
        buckets = self.calendar.buckets(lead_seconds)
        return buckets > self.lead_buckets or buckets < 0.7 * self.lead_buckets

    def look(self, *, now: float, present: Demand | None) -> Outlook:
        """The outlook of this moment; ``present`` is demand over the last minute or two, None where unknown."""
        if present is not None:
            self._known_at = now
            if present.decode > 0:
                self._blocks_per_decode = present.kv_blocks / present.decode
        blind = 0.0 if present is not None else max(1e-3, now - (self._known_at if self._known_at is not None else now))
        decode = self._look(Unit.DECODE, now, present)
        prefill = self._look(Unit.PREFILL, now, present)
        spike = self._is_spike(now, present, decode)
        blocks = self._blocks(now, present, decode)
        active = tuple(event.name for event in self._believed(now) if event.factor(now + self.lead_seconds) != 1.0)
        return Outlook(
            at=now,
            lead_seconds=self.lead_seconds,
            units=(prefill, decode, blocks),
            blind_seconds=blind,
            spike=spike,
            events=active,
        )

    def _is_flagged(self, bucket: int) -> bool:
        moment = (bucket + 0.5) * self.settings.step_seconds
        return any(event.touches(moment) for event in self.settings.events)

    def _forecaster(self) -> Forecaster:
        settings = self.settings
        return Forecaster(
            self.calendar, lead_seconds=self.lead_seconds, quantile=settings.quantile, seasons=settings.seasons
        )

    def _look(self, unit: Unit, now: float, present: Demand | None) -> UnitOutlook:
        value = present.of(unit) if present is not None else None
        forecast = self.forecast(unit)
        if forecast is None:
            return self._without_history(unit, now, value)
        events = self._believed(now)
        step = self.settings.step_seconds
        factors = [event_factor(events, now + step * index) for index in range(forecast.values.size)]
        plain = [float(found) * factor for found, factor in zip(forecast.values, factors, strict=True)]
        correction = self._correction(value, plain[0])
        corrected = [found * correction ** (CORRECTION_KEEPS**index) for index, found in enumerate(plain)]
        margin = self._margin(forecast)
        need = max(max(corrected) * margin.factor, value or 0.0)
        return UnitOutlook(
            unit=unit,
            present=value,
            forecast=plain[forecast.lead_buckets],
            peak=max(corrected),
            margin=margin,
            correction=correction,
            need=self._held[unit].highest(now, need, self.settings.hold_seconds),
        )

    def _without_history(self, unit: Unit, now: float, value: float | None) -> UnitOutlook:
        """Persistence with the default margin, and no claim of more."""
        margin = self._fixed_margin() or Margin(1.2, 0)
        known = value or 0.0
        need = self._held[unit].highest(now, known * margin.factor, self.settings.hold_seconds)
        return UnitOutlook(
            unit=unit, present=value, forecast=known, peak=known, margin=margin, correction=1.0, need=need
        )

    def _blocks(self, now: float, present: Demand | None, decode: UnitOutlook) -> UnitOutlook:
        ratio = self._blocks_per_decode
        value = present.kv_blocks if present is not None else None
        need = max(decode.peak * decode.margin.factor * ratio, value or 0.0)
        return UnitOutlook(
            unit=Unit.KV_BLOCKS,
            present=value,
            forecast=decode.forecast * ratio,
            peak=decode.peak * ratio,
            margin=decode.margin,
            correction=decode.correction,
            need=self._held[Unit.KV_BLOCKS].highest(now, need, self.settings.hold_seconds),
        )

    def _margin(self, forecast: Forecast) -> Margin:
        return self._fixed_margin() or forecast.margin

    def _fixed_margin(self) -> Margin | None:
        headroom = self.settings.headroom
        return None if headroom is None else Margin(1.0 + headroom, 0)

    def _correction(self, value: float | None, expected: float) -> float:
        """Upwards only: downwards the forecast learns by itself, and the hold is in no hurry."""
        if value is None or expected <= 0 or value < CORRECTION_FROM * expected:
            return 1.0
        return min(value / expected, LARGEST_CORRECTION)

    def _believed(self, now: float) -> Sequence[DeclaredEvent]:
        events = [event for event in self.settings.events if not event.is_over(now)]
        if not events:
            return events
        forecast = self.forecast(Unit.DECODE)
        seen = self._recent[-1][1] if self._recent else 0.0
        expected = float(forecast.values[0]) if forecast is not None else 0.0
        ratio = seen / expected if expected > 0 else 1.0
        return [checked_against(event, now=now, seen_ratio=ratio, patience_seconds=SPIKE_SECONDS) for event in events]

    def _is_spike(self, now: float, present: Demand | None, decode: UnitOutlook) -> bool:
        """Twice the demand of ten minutes ago, and nobody had forecast it."""
        if present is None:
            return False
        self._recent.append((now, present.decode))
        while self._recent and self._recent[0][0] < now - SPIKE_SECONDS:
            self._recent.popleft()
        before = self._recent[0][1]
        surprising = decode.correction * decode.margin.factor > SPIKE_FACTOR
        return before > 0 and present.decode > SPIKE_FACTOR * before and surprising and not math.isinf(before)
