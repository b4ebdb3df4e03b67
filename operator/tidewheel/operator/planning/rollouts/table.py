"""What a decision about a rollout writes into the RoutingTable: one write, whole or not at all."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidewheel.crds.routingtable import Cause, Control, Rejection, RoutingTableSpec, Target
from tidewheel.operator.moments import format_moment
from tidewheel.operator.planning.records import Picture, RuleRecord, VersionRecord
from tidewheel.operator.planning.rollouts.settings import replaces
from tidewheel.operator.planning.rollouts.situation import ACTOR
from tidewheel.operator.planning.warmth import keep_warm_after_move, still_warm
from tidewheel.rollout.machine.situation import Decision

_REJECTED: Final = 32
_REASON: Final = 64
_MESSAGE: Final = 1024


class UnknownVersionError(Exception):
    """A share is due to a version that neither an object nor the table knows any more."""


def target(version: VersionRecord, weight: int) -> Target:
    """A version's share, with what gateways need to know of it."""
    assert version.spec is not None
    return Target(
        version=version.version,
        weight=weight,
        digest=version.digest,
        runtime=version.spec.engine.runtime,
        max_model_len=version.spec.engine.max_model_len,
        slo=version.spec.slo,
    )


def refreshed(targets: Sequence[Target], picture: Picture) -> list[Target]:
    """The same weights with what gateways need to know of each version as it is now."""
    return [
        target(version, known.weight)
        if (version := picture.versions.get(known.version)) is not None and version.spec is not None
        else known
        for known in targets
    ]


def table_of(decision: Decision, rule: RuleRecord, picture: Picture, *, salt: str) -> RoutingTableSpec | None:
    """The table as the decision wants it. None: no decision of its own, beyond keeping the present one fresh."""
    assert rule.spec is not None
    old = picture.table.spec if picture.table is not None else None
    changes: dict[str, Any] = {}
    if decision.split is not None:
        changes |= _moved(decision, rule, picture, decision.split)
    elif decision.answered and old is not None and old.cause.rollout_id is not None and old.cause.actor == ACTOR:
        changes["cause"] = _cause(decision, picture, ended=True)
    if decision.reject is not None and old is not None:
        others = [entry for entry in old.rejected if entry.digest != decision.reject.digest]
        entry = Rejection(
            digest=decision.reject.digest,
            version=decision.reject.version,
            reason=decision.reject.reason[:_MESSAGE],
            at=format_moment(picture.now),
        )
        changes["rejected"] = [*others, entry][-_REJECTED:]
    if decision.unreject is not None and old is not None:
        changes["rejected"] = [entry for entry in old.rejected if entry.digest != decision.unreject]
        changes["control"] = _without_retry(old.control)
    if decision.answered:
        changes |= _answered(rule)
    if old is None:
        if decision.split is None:
            return None
        return RoutingTableSpec(**{"model": rule.spec.model, "salt": salt, **_kept(rule), **changes})
    if not changes:
        return None
    fresh = {"targets": refreshed(old.targets, picture), "keep_warm": still_warm(old.keep_warm, picture.now)}
    wanted = old.model_copy(update={**fresh, "orphaned_at": None, "tiers": rule.spec.tiers, **changes})
    return wanted if wanted != old else None


def _moved(decision: Decision, rule: RuleRecord, picture: Picture, split: Mapping[str, int]) -> dict[str, Any]:
    assert rule.spec is not None
    old = picture.table.spec if picture.table is not None else None
    known = _known_targets(old, picture)
    start = decision.state.start if decision.state is not None else {}
    return {
        "targets": [_share_of(known, version, weight) for version, weight in split.items() if weight],
        "previous": [_share_of(known, version, weight) for version, weight in start.items() if weight],
        "cause": _cause(decision, picture, ended=decision.state is None or decision.state.is_finished),
        "keep_warm": keep_warm_after_move(
            old.keep_warm if old else [],
            old.targets if old else [],
            split,  # type: ignore[arg-type]
            now=picture.now,
            # With Replace the replicas of what loses traffic make room; a promise to keep them would be empty.
            keep_seconds=0 if replaces(rule.spec) else rule.spec.rollout.keep_previous_seconds,
        ),
        "keep_previous_seconds": rule.spec.rollout.keep_previous_seconds,
        "orphaned_at": None,
    }


def _known_targets(old: RoutingTableSpec | None, picture: Picture) -> dict[str, Target]:
    """Versions as they are, else as the table remembers them: going back must not wait for a deleted object."""
    remembered = (*old.keep_warm, *old.previous, *old.targets) if old else ()
    found = {
        entry.version: Target(**{name: getattr(entry, name) for name in Target.model_fields}) for entry in remembered
    }
    for name, record in picture.versions.items():
        if record.spec is not None:
            found[name] = target(record, 0)
    return found


def _share_of(known: Mapping[str, Target], version: str, weight: int) -> Target:
    if version not in known:
        raise UnknownVersionError(
            f"version {version} is due {weight / 100:g} % of traffic and is gone; create it again"
        )
    return known[version].model_copy(update={"weight": weight})


def _cause(decision: Decision, picture: Picture, *, ended: bool) -> Cause:
    """``rolloutId`` stands there only while the rollout is under way: gateways tell its requests apart by that."""
    state = decision.state
    return Cause(
        actor=ACTOR,
        reason=decision.reason[:_REASON],
        message=decision.message[:_MESSAGE],
        at=format_moment(picture.now),
        rollout_id=None if ended or state is None else state.id,
        step=None if ended or state is None else state.step + 1,
    )


def _answered(rule: RuleRecord) -> dict[str, Any]:
    return {"rule_uid": rule.meta.uid, "rule_generation": rule.meta.generation, **_kept(rule)}


def _kept(rule: RuleRecord) -> dict[str, Any]:
    assert rule.spec is not None
    return {"keep_previous_seconds": rule.spec.rollout.keep_previous_seconds, "tiers": rule.spec.tiers}


def _without_retry(control: Control | None) -> Control | None:
    """A retry is asked for once; it must not come back with the next rejection."""
    return control.model_copy(update={"retry_digest": None}) if control is not None else None
