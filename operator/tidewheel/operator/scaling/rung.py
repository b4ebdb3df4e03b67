"""The ladder's rung, and when it will be over, go into the RoutingTable with whatever else is written, or alone."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from tidewheel.autoscaler.eta import Eta
from tidewheel.crds.routingtable import Relief, RoutingTableSpec
from tidewheel.operator.moments import format_moment, parse_moment
from tidewheel.operator.planning.actions import WriteTable
from tidewheel.operator.planning.records import Picture
from tidewheel.operator.planning.routing_plan import RoutingPlan
from tidewheel.operator.scaling.advice import ModelAdvice

MOVED_SECONDS: Final = 15.0
"""A relief that moves by less, or by less than a quarter of the wait, is left in the table as it is."""


def with_rung(plan: RoutingPlan, picture: Picture) -> RoutingPlan:
    """The plan, with rung and relief in the table that it writes; a table of its own only where one has changed."""
    advice, table = picture.advice, picture.table
    if advice is None:
        return plan
    if isinstance(plan.action, WriteTable):
        spec = _with(plan.action.spec, advice, picture.now)
        return plan if spec is None else replace(plan, action=replace(plan.action, spec=spec))
    if plan.action is not None or table is None or table.spec is None:
        return plan
    spec = _with(table.spec, advice, picture.now)
    if spec is None:
        return plan
    action = WriteTable(
        namespace=picture.key.namespace,
        spec=spec,
        table=table,
        reason=_reason(table.spec.rung, spec.rung),
        message=f"{advice.rung_message}; {relief_words(advice.relief)}" if spec.rung else advice.rung_message,
    )
    return replace(plan, action=action)


def relief_words(relief: Eta) -> str:
    """For people."""
    if relief.p50 is None or relief.p90 is None:
        return "it is not known when capacity will be enough"
    return f"capacity is expected to be enough in {relief.p50:.0f} s, in nine of ten cases within {relief.p90:.0f} s"


def _with(spec: RoutingTableSpec, advice: ModelAdvice, now: datetime) -> RoutingTableSpec | None:
    """None where the table says it already."""
    relief = _relief(advice.relief, now) if advice.rung else None
    if spec.rung == advice.rung and _is_near(spec.relief, relief, now):
        return None
    return spec.model_copy(update={"rung": advice.rung, "relief": relief})


def _relief(eta: Eta, now: datetime) -> Relief | None:
    if eta.p50 is None or eta.p90 is None:
        return None
    return Relief(
        p50=format_moment(now + timedelta(seconds=eta.p50)), p90=format_moment(now + timedelta(seconds=eta.p90))
    )


def _is_near(before: Relief | None, after: Relief | None, now: datetime) -> bool:
    if before is None or after is None:
        return before is after
    for old, new in ((before.p50, after.p50), (before.p90, after.p90)):
        moved = abs((parse_moment(new) - parse_moment(old)).total_seconds())
        if moved > max(MOVED_SECONDS, 0.25 * (parse_moment(new) - now).total_seconds()):
            return False
    return True


def _reason(before: int, after: int) -> str:
    return "LadderRelief" if before == after else "LadderUp" if after > before else "LadderDown"
