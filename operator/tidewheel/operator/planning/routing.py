"""Where the traffic of a model goes: from the rule that people write to the table that gateways obey.

The table answers one (uid, generation) of the rule. Once answered, the table is the truth: whatever a person writes
there stays until the rule changes again. The planner never says how to get from one split to another in memory; every
step starts from the table as it is.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from tidewheel.crds.names import BasisPoints
from tidewheel.crds.routingrule import RoutingRuleSpec
from tidewheel.crds.routingtable import Cause, RoutingTableSpec
from tidewheel.operator.moments import format_moment, parse_moment
from tidewheel.operator.planning.actions import DeleteTable, WriteTable
from tidewheel.operator.planning.records import Picture, RuleRecord, TableRecord, VersionRecord
from tidewheel.operator.planning.rollouts.settings import DEFAULTS, RolloutDefaults
from tidewheel.operator.planning.rollouts.situation import ACTOR
from tidewheel.operator.planning.rollouts.steps import is_under_way, plan_steps, takes_steps
from tidewheel.operator.planning.rollouts.table import refreshed, target
from tidewheel.operator.planning.routing_plan import Capacity, RoutingPlan, pruned, with_pruning, write
from tidewheel.operator.planning.rule_validation import refuse_rule
from tidewheel.operator.planning.split import Shares, shares, split_in_words, wanted_shares
from tidewheel.operator.planning.verdicts import Finding, RuleVerdict
from tidewheel.operator.planning.warmth import keep_warm_after_move, still_warm


def plan_routing(  # noqa: PLR0911 - one line per case reads best
    picture: Picture,
    *,
    capacity: Callable[[VersionRecord, BasisPoints], Capacity],
    new_salt: str,
    rollouts: RolloutDefaults = DEFAULTS,
) -> RoutingPlan:
    """One look at rule and table. ``new_salt`` is used if a table is created, and names a rollout that begins."""
    rule, table = picture.rule, picture.table
    if rule is None or rule.meta.deleting is not None:
        return _plan_orphan(table, picture.now)
    if table is not None and table.spec is None:
        finding = Finding("TableUnreadable", f"RoutingTable {table.meta.name}: {table.invalid}")
        return RoutingPlan(verdict=RuleVerdict(stalled=finding), growing={})
    refusal = refuse_rule(rule, picture, current=shares(table))
    answered = table is not None and table.spec is not None and is_answered(table.spec, rule)

    def in_steps(wanted: Shares | None) -> RoutingPlan:
        return plan_steps(
            picture, rule, wanted, capacity=capacity, new_salt=new_salt, answered=answered, defaults=rollouts
        )

    if refusal is not None or rule.spec is None:
        refused = RuleVerdict(refused=refusal)
        if rule.spec is not None and is_under_way(picture):
            return replace(in_steps(None), verdict=refused)
        return with_pruning(RoutingPlan(verdict=refused, growing={}), picture)
    wanted = wanted_shares(rule.spec)
    if takes_steps(rule, picture, answered=answered):
        return in_steps(wanted)
    if table is not None and table.spec is not None and answered:
        return _plan_answered(picture, table, table.spec, wanted)
    if rejection := _rejected(picture, wanted):
        return with_pruning(RoutingPlan(verdict=RuleVerdict(rejected=rejection), growing={}), picture)
    if wanted == shares(table):
        return _plan_same_split(picture, rule, rule.spec)
    return _plan_move(picture, rule.spec, wanted, capacity=capacity, new_salt=new_salt)


def is_answered(table: RoutingTableSpec, rule: RuleRecord) -> bool:
    """Whether the table has answered this generation of this rule."""
    return (table.rule_uid, table.rule_generation) == (rule.meta.uid, rule.meta.generation)


def _plan_orphan(table: TableRecord | None, now: datetime) -> RoutingPlan:
    """Without its rule the table stays in force for a while: a rule deleted by mistake stops nothing."""
    if table is None or table.spec is None:
        return RoutingPlan(growing={})
    keep = timedelta(seconds=table.spec.keep_previous_seconds)
    if table.spec.orphaned_at is None:
        spec = table.spec.model_copy(update={"orphaned_at": format_moment(now)})
        message = f"RoutingRule {table.meta.name} is gone; its split stays in force for {keep.total_seconds():.0f} s"
        return RoutingPlan(action=write(table, spec, "RuleGone", message), growing={}, wake_at=(now + keep,))
    end = parse_moment(table.spec.orphaned_at) + keep
    if now < end:
        return pruned(table, table.spec, now, RoutingPlan(growing={}, wake_at=(end,)))
    message = f"RoutingRule {table.meta.name} has been gone for {keep.total_seconds():.0f} s; its split ends"
    return RoutingPlan(action=DeleteTable(table=table, message=message), growing={})


def _rejected(picture: Picture, wanted: Shares) -> Finding | None:
    """The rule asks for more of a version that was rolled back."""
    table = picture.table
    if table is None or table.spec is None:
        return None
    by_digest = {rejection.digest: rejection for rejection in table.spec.rejected}
    current = shares(table)
    for version, share in wanted.items():
        rejection = by_digest.get(picture.versions[version].digest)
        # Only a version that is to grow: one in force may run the same content under another name.
        if rejection is not None and share > current.get(version, 0):
            return Finding(
                "VersionRejected",
                f"version {version} was rejected at {rejection.at}: {rejection.reason}; the split stays "
                f"{split_in_words(shares(table))}. Name another version, or go there by hand with "
                f"`kubectl rollback {picture.key.model} --to {version}`",
            )
    return None


def _plan_answered(picture: Picture, table: TableRecord, spec: RoutingTableSpec, wanted: Shares) -> RoutingPlan:
    """The rule has been answered: keep what gateways know of the versions fresh, and adopt what a person wrote."""
    if rejection := _rejected(picture, wanted):
        verdict = RuleVerdict(rejected=rejection)
    elif shares(table) != wanted:
        cause = spec.cause
        verdict = RuleVerdict(
            overridden=Finding(
                "SplitOverridden",
                f"{cause.actor} set the split {split_in_words(shares(table))} at {cause.at} ({cause.reason}); "
                "it stays until spec.traffic changes",
            )
        )
    else:
        verdict = RuleVerdict()
    return with_pruning(RoutingPlan(verdict=verdict, growing={}), picture)


def _plan_same_split(picture: Picture, rule: RuleRecord, rule_spec: RoutingRuleSpec) -> RoutingPlan:
    """The rule asks for what is in force already: only note that it is answered."""
    table = picture.table
    assert table is not None
    assert table.spec is not None
    spec = table.spec.model_copy(
        update={
            "targets": refreshed(table.spec.targets, picture),
            "rule_uid": rule.meta.uid,
            "rule_generation": rule.meta.generation,
            "keep_previous_seconds": rule_spec.rollout.keep_previous_seconds,
            "keep_warm": still_warm(table.spec.keep_warm, picture.now),
            "orphaned_at": None,
            "tiers": rule_spec.tiers,
        }
    )
    message = f"the split {split_in_words(shares(table))} answers generation {rule.meta.generation} of the rule"
    return RoutingPlan(verdict=RuleVerdict(), action=write(table, spec, "RuleAnswered", message), growing={})


def _plan_move(
    picture: Picture,
    rule_spec: RoutingRuleSpec,
    wanted: Shares,
    *,
    capacity: Callable[[VersionRecord, BasisPoints], Capacity],
    new_salt: str,
) -> RoutingPlan:
    """Capacity first, then weight."""
    table, rule = picture.table, picture.rule
    assert rule is not None
    current = shares(table)
    growing = {version: share for version, share in wanted.items() if share > current.get(version, 0)}
    have = {version: capacity(picture.versions[version], share) for version, share in growing.items()}
    short = {version: found for version, found in have.items() if found.ready < found.needed}
    if short:
        words = [f"{found.needed} replica(s) of {version} (ready: {found.ready})" for version, found in short.items()]
        message = f"traffic moves to {split_in_words(wanted)} once there are {' and '.join(words)}"
        verdict = RuleVerdict(waiting=Finding("WaitingForReplicas", message), awaited=tuple(short))
        wake_at = tuple(moment for found in short.values() for moment in found.next_at)
        return with_pruning(RoutingPlan(verdict=verdict, growing=growing, wake_at=wake_at), picture)
    spec = _moved(rule, rule_spec, picture, wanted, new_salt=new_salt)
    action = WriteTable(
        namespace=picture.key.namespace, spec=spec, table=table, reason="SplitApplied", message=spec.cause.message
    )
    return RoutingPlan(verdict=RuleVerdict(), action=action, growing=growing)


def _moved(
    rule: RuleRecord, rule_spec: RoutingRuleSpec, picture: Picture, wanted: Shares, *, new_salt: str
) -> RoutingTableSpec:
    """The table with the wanted split; the salt stays, so that conversations move only towards what grows."""
    old = picture.table.spec if picture.table is not None else None
    current = shares(picture.table)
    message = f"split {split_in_words(current)} -> {split_in_words(wanted)}"
    keep_seconds = rule_spec.rollout.keep_previous_seconds
    moved = {
        "model": rule_spec.model,
        "targets": [target(picture.versions[version], share) for version, share in wanted.items()],
        "previous": [target for target in old.targets if target.weight] if old else [],
        "rule_uid": rule.meta.uid,
        "rule_generation": rule.meta.generation,
        "salt": old.salt if old else new_salt,
        "cause": Cause(actor=ACTOR, reason="RuleApplied", message=message, at=format_moment(picture.now)),
        "keep_warm": keep_warm_after_move(
            old.keep_warm if old else [],
            old.targets if old else [],
            wanted,
            now=picture.now,
            keep_seconds=keep_seconds,
        ),
        "keep_previous_seconds": keep_seconds,
        "orphaned_at": None,
        "tiers": rule_spec.tiers,
    }
    return old.model_copy(update=moved) if old else RoutingTableSpec(**moved)
