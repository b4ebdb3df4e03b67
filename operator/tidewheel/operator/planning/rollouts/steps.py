"""Traffic that moves in steps: the rollout's decision as a plan for the model's table, replicas and status."""

from collections.abc import Callable
from dataclasses import replace

from tidewheel.crds.names import BasisPoints
from tidewheel.operator.planning.actions import WriteTable
from tidewheel.operator.planning.records import Picture, RuleRecord, VersionRecord
from tidewheel.operator.planning.rollouts.plan import RolloutPlan, plan_rollout, wake_moments
from tidewheel.operator.planning.rollouts.settings import RolloutDefaults
from tidewheel.operator.planning.rollouts.situation import Replicas, asks_for_retry, stored_state
from tidewheel.operator.planning.rollouts.table import UnknownVersionError, table_of
from tidewheel.operator.planning.routing_plan import Capacity, RoutingPlan, with_pruning
from tidewheel.operator.planning.split import Shares
from tidewheel.operator.planning.verdicts import Finding, RuleVerdict
from tidewheel.rollout.machine.state import Phase

CapacityOf = Callable[[VersionRecord, BasisPoints], Capacity]


def takes_steps(rule: RuleRecord, picture: Picture, *, answered: bool) -> bool:
    """Whether the step machine decides: a rollout is under way, one is due in steps, or a retry was asked for."""
    table = picture.table.spec if picture.table is not None else None
    state = stored_state(picture)
    if (state is not None and not state.is_finished) or asks_for_retry(table, state):
        return True
    return not answered and rule.spec is not None and bool(rule.spec.rollout.steps)


def is_under_way(picture: Picture) -> bool:
    """Whether a rollout has begun and is not over."""
    state = stored_state(picture)
    return state is not None and not state.is_finished


def plan_steps(
    picture: Picture,
    rule: RuleRecord,
    wanted: Shares | None,
    *,
    capacity: CapacityOf,
    new_salt: str,
    answered: bool,
    defaults: RolloutDefaults,
) -> RoutingPlan:
    """``wanted`` None: the rule cannot be obeyed as it is now; what is under way stands still, and may go back."""
    replicas = Replicas(
        ready=lambda version: capacity(version, BasisPoints(0)).ready,
        need=lambda version, share: capacity(version, share).needed,
    )
    rollout = plan_rollout(
        rule, picture, wanted, replicas=replicas, defaults=defaults, answered=answered, new_id=lambda: new_salt
    )
    grow = {version: BasisPoints(share) for version, share in rollout.decision.grow.items()}
    have = {name: capacity(picture.versions[name], share) for name, share in grow.items() if name in picture.versions}
    verdict = _verdict(rollout, awaited=tuple(name for name, found in have.items() if found.ready < found.needed))
    wake_at = (*wake_moments(rollout), *(moment for found in have.values() for moment in found.next_at))
    plan = RoutingPlan(verdict=verdict, growing=grow, wake_at=wake_at, rollout=rollout)
    try:
        spec = table_of(rollout.decision, rule, picture, salt=new_salt)
    except UnknownVersionError as error:
        missing = Finding("VersionMissing", str(error))
        kept = replace(rollout, save=None)
        return with_pruning(replace(plan, verdict=RuleVerdict(stalled=missing), rollout=kept), picture)
    if spec is None:
        return with_pruning(plan, picture)
    write = WriteTable(
        namespace=picture.key.namespace,
        spec=spec,
        table=picture.table,
        reason=rollout.decision.reason,
        message=rollout.decision.message,
        quiet=True,
    )
    return replace(plan, action=write)


def _verdict(rollout: RolloutPlan, *, awaited: tuple[str, ...]) -> RuleVerdict:
    decision, state = rollout.decision, rollout.decision.state
    if rollout.refused is not None:
        return RuleVerdict(refused=rollout.refused)
    if decision.stalled is not None:
        return RuleVerdict(stalled=Finding(*decision.stalled), judged=_judged(rollout))
    degraded = Finding(*decision.degraded) if decision.degraded is not None else None
    if not rollout.is_running or state is None:
        return RuleVerdict(rejected=degraded)
    waits = state.phase is Phase.WAITING_FOR_CAPACITY
    return RuleVerdict(
        waiting=Finding(decision.reason, decision.message),
        awaited=awaited if waits else (),
        degraded=degraded,
        judged=_judged(rollout),
    )


def _judged(rollout: RolloutPlan) -> Finding | None:
    """What the judge said last of the present step."""
    status = rollout.status
    if status is None or not status.verdict or not rollout.is_running:
        return None
    return Finding(status.verdict.capitalize(), status.message or "")
