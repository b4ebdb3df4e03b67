"""What the step machine is shown: the picture of a model in its own words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidewheel.crds.names import BasisPoints
from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.crds.routingtable import Control as ControlRecord
from tidewheel.crds.routingtable import RoutingTableSpec
from tidewheel.operator.planning.records import Picture, VersionRecord, gpus_of
from tidewheel.operator.planning.split import Shares, shares
from tidewheel.rollout.errors import StateError
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.machine.policy import RolloutPolicy
from tidewheel.rollout.machine.situation import Control, RejectedDigest, Situation, TableFacts, VersionFacts
from tidewheel.rollout.machine.state import RolloutState, from_json

ACTOR = "tidewheel-operator"
_NO_ROLLOUT = "none"
"""What a retry names where no rollout is known, as after a rollback by hand of a split that was set at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """``ready``: serving, and known to the gateways. ``need``: for a share in basis points."""

    ready: Callable[[VersionRecord], int]
    need: Callable[[VersionRecord, BasisPoints], int]


def stored_state(picture: Picture) -> RolloutState | None:
    """The progress in the rule's status. None: there was no rollout, or what is stored cannot be read."""
    status = picture.rule.status.rollout if picture.rule is not None else None
    if status is None:
        return None
    try:
        return from_json(status.to_wire())
    except StateError:
        return None


def asks_for_retry(table: RoutingTableSpec | None, state: RolloutState | None) -> bool:
    """A person asked to judge a rejected digest once more, and it is still rejected."""
    control = table.control if table is not None else None
    if table is None or control is None or control.retry_digest is None or not _is_for(control, state):
        return False
    return any(entry.digest == control.retry_digest for entry in table.rejected)


def situation(
    picture: Picture,
    wanted: Shares,
    *,
    policy: RolloutPolicy,
    on_capacity: OnCapacity,
    state: RolloutState | None,
    replicas: Replicas,
    answered: bool,
    paused: bool,
    rollout_id: str,
) -> Situation:
    """Everything at this moment."""
    versions = picture.versions

    def need(version: str, share: int) -> int:
        record = versions.get(version)
        return replicas.need(record, BasisPoints(share)) if record is not None else 1

    return Situation(
        now=picture.now,
        goal=dict(wanted),
        policy=policy,
        versions={name: _facts(picture, record, replicas) for name, record in versions.items()},
        need=need,
        on_capacity=on_capacity,
        gpus_free=picture.gpus_free() if _is_planned(picture, state) else None,
        table=_table_facts(picture, state),
        answered=answered,
        paused=paused,
        confirmed=picture.evidence.confirmed,
        verdict=picture.evidence.verdict,
        quality=picture.evidence.quality,
        slo_seconds={name: _slo(record) for name, record in versions.items()},
        new_rollout_id=rollout_id,
    )


def _is_planned(picture: Picture, state: RolloutState | None) -> bool:
    """Whether a rollout may begin, or its plan is still to be told. What is free is a sum over all models."""
    told = picture.rule.status.rollout if picture.rule is not None else None
    return state is None or state.is_finished or told is None or not told.plan


def _facts(picture: Picture, record: VersionRecord, replicas: Replicas) -> VersionFacts:
    return VersionFacts(
        digest=record.digest,
        ready=replicas.ready(record),
        present=sum(pod.is_live for pod in picture.pods_of(record.version)),
        gpus=gpus_of(record),
    )


def _table_facts(picture: Picture, state: RolloutState | None) -> TableFacts | None:
    table = picture.table
    if table is None or table.spec is None:
        return None
    spec = table.spec
    return TableFacts(
        split=dict(shares(table)),
        generation=table.meta.generation,
        previous={target.version: target.weight for target in spec.previous if target.weight},
        rollout_id=spec.cause.rollout_id or "",
        by_person=spec.cause.actor != ACTOR,
        actor=spec.cause.actor,
        rejected=tuple(RejectedDigest(entry.digest, entry.version, entry.reason) for entry in spec.rejected),
        control=_control(spec.control, state),
    )


def _control(control: ControlRecord | None, state: RolloutState | None) -> Control | None:
    if control is None or not _is_for(control, state):
        return None
    return Control(
        rollout_id=control.rollout_id,
        actor=control.actor,
        paused=bool(control.paused),
        no_rollback=bool(control.no_rollback),
        promote_step=control.promote_step,
        retry_digest=control.retry_digest,
    )


def _is_for(control: ControlRecord, state: RolloutState | None) -> bool:
    """Whether it names the rollout at hand: what was typed for one never acts on the next."""
    return control.rollout_id == (state.id if state is not None else _NO_ROLLOUT)


def _slo(record: VersionRecord) -> Mapping[str, float]:
    if record.spec is None:
        return {}
    slo = record.spec.slo
    return {Latency.TPOT: slo.tpot_ms / 1000, Latency.TTFT: slo.ttft_ms / 1000}
