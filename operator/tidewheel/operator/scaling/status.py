"""The scaling part of a ModelVersion's status: it rides along with what changes, not with every number."""

from datetime import datetime, timedelta
from typing import Final

from tidewheel.autoscaler.ladder import WORDS, Rung
from tidewheel.autoscaler.version_plan import Mode
from tidewheel.crds.modelversion import ModelVersionStatus
from tidewheel.crds.scalingstatus import CapacityStatus, PendingReplica, ScalingStatus, UnitStatus
from tidewheel.operator.moments import format_moment, parse_moment
from tidewheel.operator.planning.records import Picture, PodRecord, VersionRecord
from tidewheel.operator.planning.split import shares
from tidewheel.operator.scaling.advice import ModelAdvice, VersionAdvice
from tidewheel.operator.scaling.rung import relief_words
from tidewheel.operator.scaling.starts import measured_starts

FRESH_SECONDS: Final = 300.0
_SHOWN_PENDING: Final = 20


def with_scaling(status: ModelVersionStatus, version: VersionRecord, picture: Picture) -> ModelVersionStatus:
    """The status with starts as measured, and with the arithmetic where the version is scaled."""
    pods = [pod for pod in picture.pods_of(version.version) if pod.is_live]
    update: dict[str, object] = {
        "cold_start": measured_starts(pods, version.status.cold_start),
        "capacity": version.status.capacity,
    }
    advice = picture.advice.versions.get(version.version) if picture.advice is not None else None
    if version.spec is not None and version.spec.scaling is not None:
        before = version.status.scaling
        if advice is None or picture.advice is None:
            update["scaling"] = before or ScalingStatus(
                message="demand has not been read yet; minReplicas is kept (the operator needs --prometheus-url)"
            )
            update["forecast_replicas"] = version.status.forecast_replicas
        else:
            found = _scaling(status, advice, pods, picture=picture, version=version.version)
            keep = before is not None and _says_the_same(before, found, picture.now)
            update["scaling"] = before if keep else found
            update["forecast_replicas"] = (
                version.status.forecast_replicas if keep else advice.load.wanted(_share(picture, version.version))
            )
            update["capacity"] = version.status.capacity if keep else _capacity(advice)
    return status.model_copy(update=update)


def _scaling(
    status: ModelVersionStatus, advice: VersionAdvice, pods: list[PodRecord], *, picture: Picture, version: str
) -> ScalingStatus:
    model = picture.advice
    assert model is not None
    share, load = _share(picture, version), advice.load
    wanted = load.wanted(share)
    units = [
        UnitStatus(
            unit=entry.unit.value,
            present=None if entry.present is None else round(entry.present),
            forecast=round(entry.forecast),
            need=round(entry.need),
            capacity=round(advice.capacity.of(entry.unit)),
            margin_percent=round(100 * (entry.margin.factor - 1)),
        )
        for entry in model.outlook.units
    ]
    pending = sorted((pod for pod in pods if not pod.ready), key=lambda pod: pod.meta.name)[:_SHOWN_PENDING]
    return ScalingStatus(
        message=_sentence(status, model, advice, share, wanted),
        binding=_binding(model, advice, share, wanted),
        advised_replicas=min(wanted, load.bounds.ceiling),
        shortfall=load.shortfall(share),
        lead_seconds=round(advice.lead_seconds),
        units=units,
        forecast_by=model.forecast_by or None,
        pending=[_pending(pod, advice.lead_seconds, picture.now) for pod in pending],
        updated_at=format_moment(picture.now),
    )


def _share(picture: Picture, version: str) -> int:
    return shares(picture.table).get(version, 0) or 10_000


def _pending(pod: PodRecord, lead: float, now: datetime) -> PendingReplica:
    created = pod.meta.created or now
    return PendingReplica(name=pod.meta.name, expected_ready=format_moment(created + timedelta(seconds=lead)))


def _binding(model: ModelAdvice, advice: VersionAdvice, share: int, wanted: int) -> str:
    load, bounds = advice.load, advice.load.bounds
    if advice.other_writer:
        return "another writer"
    if model.outlook.is_blind:
        return "blind"
    if bounds.mode in (Mode.OBSERVE, Mode.ADVISE):
        return f"mode {bounds.mode.value}"
    if load.shortfall(share):
        return "maximum" if bounds.budget is None or bounds.maximum <= bounds.budget else "GPU budget"
    if wanted <= max(bounds.minimum, 1):
        return "minimum"
    return load.binding.value


def _sentence(status: ModelVersionStatus, model: ModelAdvice, advice: VersionAdvice, share: int, wanted: int) -> str:
    load, outlook = advice.load, model.outlook
    entry = outlook.of(load.binding)
    unit = load.binding.value
    if advice.other_writer:
        return f"{advice.other_writer} sizes this version too; remove it or spec.scaling. Until then we only advise"
    parts = []
    if outlook.is_blind:
        parts.append(f"demand is not known ({model.blind_reason}), so nothing shrinks")
    elif entry.present is not None:
        parts.append(f"{entry.present:,.0f} {unit} are offered")
    if model.blind_reason and not outlook.is_blind:
        parts.append(f"{model.blind_reason}, so nothing shrinks")
    parts.append(
        f"{entry.peak:,.0f} are forecast for the next {outlook.lead_seconds:.0f} s, x {entry.margin.factor:.2f} margin"
    )
    parts.append(f"{entry.need:,.0f} are prepared for")
    own = f"{load.whole * share / 10_000:.2f} replicas of {advice.capacity.of(load.binding):,.0f}"
    shared = "" if share == 10_000 else f" at {share / 100:g} % of traffic"
    parts.append(f"that is {own}{shared} and {load.bounds.spare} spare")
    if outlook.events:
        parts.append(f"counting on {', '.join(outlook.events)}")
    if short := load.shortfall(share):
        parts.append(f"{short} replica(s) are needed and not allowed")
    if model.rung:
        parts.append(f"ladder at rung {model.rung}: {WORDS[Rung(model.rung)]}; {relief_words(model.relief)}")
    if load.bounds.mode is not Mode.FULL:
        parts.append(f"mode {load.bounds.mode.value}: {wanted} would be ordered, {status.desired_replicas} are")
    return "; ".join(parts)


def _capacity(advice: VersionAdvice) -> CapacityStatus:
    found = advice.capacity
    return CapacityStatus(
        decode_tokens_per_second=round(found.decode),
        prefill_tokens_per_second=round(found.prefill),
        kv_tokens=round(found.kv_tokens),
        max_streams=found.max_streams,
        source=found.source.value,
    )


def _says_the_same(before: ScalingStatus, after: ScalingStatus, now: datetime) -> bool:
    """Nothing that a person would act upon has changed, and the numbers are not old."""
    if before.updated_at is None or (now - parse_moment(before.updated_at)).total_seconds() > FRESH_SECONDS:
        return False

    def weighty(status: ScalingStatus) -> tuple[object, ...]:
        return (
            status.binding,
            status.advised_replicas,
            status.shortfall,
            status.lead_seconds,
            tuple(entry.name for entry in status.pending),
        )

    return weighty(before) == weighty(after)
