"""Status of a RoutingRule: a mirror of the table, and why it is not what the rule asks for."""

from dataclasses import dataclass

from tidewheel.crds.conditions import Condition, ConditionStatus
from tidewheel.crds.rolloutstatus import RolloutStatus
from tidewheel.crds.routingrule import EffectiveTarget, RoutingRuleStatus
from tidewheel.crds.routingtable import RoutingTableSpec, Target
from tidewheel.operator.moments import parse_moment
from tidewheel.operator.planning.conditions import ConditionList
from tidewheel.operator.planning.failures import worst_problem
from tidewheel.operator.planning.records import Picture, RuleRecord
from tidewheel.operator.planning.rollouts.settings import replaces
from tidewheel.operator.planning.split import split_in_words
from tidewheel.operator.planning.verdicts import Finding, RuleVerdict
from tidewheel.operator.planning.warmth import still_warm
from tidewheel.rollout.judge.findings import VerdictKind

SELF_HEALING = frozenset({"VersionNotFound"})
"""Refusals that end without a change of the rule, when something else is applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    accepted: Finding | None = None
    degraded: Finding | None = None
    reconciling: Finding | None = None
    stalled: Finding | None = None
    judged: Finding | None = None


def rule_status(
    rule: RuleRecord, verdict: RuleVerdict, picture: Picture, *, failure: Finding | None = None
) -> RoutingRuleStatus:
    """The status as it should be now; ``failure`` is what the API server refused us."""
    table = picture.table.spec if picture.table else None
    targets = [target for target in table.targets if target.weight] if table else []
    split = {target.version: target.weight for target in targets}
    observed = _observed(rule, split)
    return RoutingRuleStatus(
        traffic=[
            EffectiveTarget(version=version, weight=weight, observed_weight=observed.get(version))
            for version, weight in split.items()
        ],
        split=split_in_words(split)[:256] if table else None,
        conditions=_conditions(rule, _outcome(verdict, picture, failure), table, picture),
        observed_generation=rule.meta.generation,
    )


def _outcome(verdict: RuleVerdict, picture: Picture, failure: Finding | None) -> _Outcome:
    if verdict.refused is not None:
        if verdict.refused.reason in SELF_HEALING:
            return _Outcome(accepted=verdict.refused, reconciling=verdict.refused)
        return _Outcome(accepted=verdict.refused, stalled=verdict.refused)
    lasting = verdict.rejected or verdict.overridden or verdict.stalled
    if lasting is not None:
        return _Outcome(degraded=lasting, stalled=lasting, judged=verdict.judged)
    degraded = failure or verdict.degraded or _unserved(picture)
    if verdict.waiting is not None:
        moving = _with_trouble(verdict.waiting, verdict.awaited, picture)
        return _Outcome(reconciling=moving, degraded=degraded, judged=verdict.judged)
    return _Outcome(degraded=degraded, reconciling=failure)


def _conditions(
    rule: RuleRecord, outcome: _Outcome, table: RoutingTableSpec | None, picture: Picture
) -> list[Condition]:
    conditions = ConditionList(rule.status.conditions, generation=rule.meta.generation, now=picture.now)
    accepted, degraded = outcome.accepted, outcome.degraded
    conditions.add("Accepted", accepted is None, accepted or Finding("Valid", "the rule can be obeyed"))
    conditions.add("Degraded", degraded is not None, degraded or Finding("AsExpected", "every version serves"))
    stalled, moving = outcome.stalled, outcome.reconciling
    conditions.add("Stalled", stalled is not None, stalled or Finding("Progressing", "nothing waits for a person"))
    still = Finding("UpToDate", "no traffic is about to move")
    conditions.add("Reconciling", moving is not None, moving or still)
    conditions.add("GatePassing", *_gate(outcome.judged))
    conditions.add("RollbackArmed", *_rollback_armed(rule, table, picture))
    obstacle = accepted or stalled or moving or degraded
    words = f"traffic goes {split_in_words({t.version: t.weight for t in table.targets})}" if table else "no split yet"
    conditions.add("Ready", obstacle is None and table is not None, obstacle or Finding("SplitInForce", words))
    return conditions.as_list()


def _gate(judged: Finding | None) -> tuple[ConditionStatus, Finding]:
    """Whether the judge would let the step end; Unknown while nothing is judged."""
    if judged is None:
        return ConditionStatus.UNKNOWN, Finding("NothingJudged", "no step of a rollout is under judgement")
    passing = judged.reason == VerdictKind.CLEAR.value.capitalize()
    return (ConditionStatus.TRUE if passing else ConditionStatus.FALSE), judged


def _observed(rule: RuleRecord, split: dict[str, int]) -> dict[str, int]:
    """What arrived at either version of the step under judgement, in basis points of all traffic."""
    rollout = rule.status.rollout
    if rollout is None or rollout.outcome is not None or rollout.observed_share is None or not rollout.canary:
        return {}
    base, canary = rollout.base or "", rollout.canary
    both = split.get(base, 0) + split.get(canary, 0)
    mine = round(both * rollout.observed_share)
    return {canary: mine, base: both - mine}


def _rollback_armed(rule: RuleRecord, table: RoutingTableSpec | None, picture: Picture) -> tuple[bool, Finding]:
    """Whether `kubectl rollback` would find replicas that serve."""
    if table is not None and (waiting := _unstarted(rule.status.rollout, table)):
        split = split_in_words({target.version: target.weight for target in table.targets})
        words = f"`kubectl rollback {table.model}` rejects {waiting} before it gets traffic; {split} stays"
        return True, Finding("NothingMoved", words)
    previous = _way_back(table) if table else []
    if table is None or not previous:
        return False, Finding("NothingPrevious", "there is no split to go back to")
    words = split_in_words({target.version: target.weight for target in previous})
    cold = [target.version for target in previous if not any(pod.is_serving for pod in picture.pods_of(target.version))]
    if cold:
        return False, Finding(
            "PreviousNotReady", f"the previous split {words} has no ready replica of {', '.join(cold)}"
        )
    if shrunk := _shrunk(table, previous, picture):
        return False, Finding(
            "BaseShrunk",
            f"`kubectl rollback {table.model}` returns to {words} at once, to fewer replicas than that needs: "
            f"onCapacity: Replace has let {', '.join(shrunk)} make room",
        )
    names = {target.version for target in previous}
    ends = [parse_moment(entry.until) for entry in still_warm(table.keep_warm, picture.now) if entry.version in names]
    until = f" until {min(ends):%Y-%m-%dT%H:%M:%SZ}" if ends else ""
    return True, Finding("PreviousWarm", f"`kubectl rollback {table.model}` returns to {words}, kept warm{until}")


def _unstarted(rollout: RolloutStatus | None, table: RoutingTableSpec) -> str | None:
    """The version of a rollout that has no traffic: a rollback takes its turn away, and leaves the split as it is."""
    if rollout is None or rollout.outcome is not None or rollout.canary_digest is None:
        return None
    serving = {target.digest for target in table.targets if target.weight}
    in_force = {target.version: target.weight for target in table.targets if target.weight}
    return rollout.canary if in_force == rollout.start and rollout.canary_digest not in serving else None


def _shrunk(table: RoutingTableSpec, previous: list[Target], picture: Picture) -> list[str]:
    """Versions of the way back that have given up replicas with their traffic."""
    rule = picture.rule.spec if picture.rule is not None else None
    if rule is None or not replaces(rule):
        return []
    weights = {target.version: target.weight for target in table.targets}
    return [target.version for target in previous if weights.get(target.version, 0) < target.weight]


def _way_back(table: RoutingTableSpec) -> list[Target]:
    """The previous split as a rollback takes it: without what was rejected, and nothing if the rest is in force."""
    rejected = {rejection.digest for rejection in table.rejected}
    allowed = [target for target in table.previous if target.weight and target.digest not in rejected]
    serving = {target.version for target in table.targets if target.weight}
    return [] if rejected and {target.version for target in allowed} == serving else allowed


def _unserved(picture: Picture) -> Finding | None:
    """A version that takes traffic and has nobody to serve it."""
    table = picture.table.spec if picture.table else None
    for target in table.targets if table else ():
        name = f"{picture.key.model}-{target.version}"
        share = f"takes {target.weight / 100:g} % of traffic"
        if target.weight and not any(pod.is_serving for pod in picture.pods_of(target.version)):
            version = picture.versions.get(target.version)
            if version is None:
                return Finding("VersionMissing", f"{name} {share}, but its ModelVersion is gone; create it again")
            return Finding("VersionUnavailable", f"{name} {share} and has no ready replica; see its conditions")
    return None


def _with_trouble(waiting: Finding, awaited: tuple[str, ...], picture: Picture) -> Finding:
    """Add what keeps the awaited replicas from becoming ready."""
    for name in awaited:
        version = picture.versions[name]
        problem = worst_problem(picture.pods_of(name), version.spec) if version.spec is not None else None
        if problem is not None:
            return Finding(waiting.reason, f"{waiting.message}. {version.meta.name}: {problem.finding.message}")
    return waiting
