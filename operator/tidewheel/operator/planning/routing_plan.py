"""What is done about a table, and how one is kept fresh beside any decision."""

from dataclasses import dataclass, replace
from datetime import datetime

from tidewheel.crds.routingtable import RoutingTableSpec
from tidewheel.operator.moments import parse_moment
from tidewheel.operator.planning.actions import Action, WriteTable
from tidewheel.operator.planning.records import Picture, TableRecord
from tidewheel.operator.planning.rollouts.plan import RolloutPlan
from tidewheel.operator.planning.rollouts.table import refreshed
from tidewheel.operator.planning.split import Shares
from tidewheel.operator.planning.verdicts import RuleVerdict
from tidewheel.operator.planning.warmth import still_warm


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPlan:
    """What to do about the table, what the versions must prepare for, and what the rule's status says."""

    verdict: RuleVerdict | None = None
    action: Action | None = None
    growing: Shares
    wake_at: tuple[datetime, ...] = ()
    rollout: RolloutPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Replicas of a version that serve now, how many its next share asks for, and when more of them count."""

    ready: int
    needed: int
    next_at: tuple[datetime, ...] = ()


def with_pruning(plan: RoutingPlan, picture: Picture) -> RoutingPlan:
    """Beside a decision that leaves the split as it is: refresh the targets and let rollback targets cool."""
    table = picture.table
    if table is None or table.spec is None:
        return plan
    # There is a rule, even if it cannot be obeyed: the time that an orphan has begins anew if it goes again. Its tiers
    # count whatever becomes of its split.
    rule_spec = picture.rule.spec if picture.rule is not None else None
    fresh = table.spec.model_copy(
        update={
            "targets": refreshed(table.spec.targets, picture),
            "orphaned_at": None,
            "tiers": rule_spec.tiers if rule_spec is not None else table.spec.tiers,
        }
    )
    return pruned(table, fresh, picture.now, plan)


def pruned(table: TableRecord, spec: RoutingTableSpec, now: datetime, plan: RoutingPlan) -> RoutingPlan:
    warm = still_warm(spec.keep_warm, now)
    spec = spec.model_copy(update={"keep_warm": warm})
    wake_at = (*plan.wake_at, *(parse_moment(entry.until) for entry in warm))
    action = None
    if spec != table.spec:
        action = write(table, spec, "TableRefreshed", "what gateways know of the versions has changed")
    return replace(plan, action=action, wake_at=wake_at)


def write(table: TableRecord, spec: RoutingTableSpec, reason: str, message: str) -> WriteTable:
    return WriteTable(namespace=table.meta.namespace, spec=spec, table=table, reason=reason, message=message)
