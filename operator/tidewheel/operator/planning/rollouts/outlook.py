"""The plan before the start, in lines for people: what each step can tell at this traffic, and whether both fit."""

from collections.abc import Sequence
from typing import Final

from tidewheel.crds.rolloutstatus import RolloutStatus
from tidewheel.operator.planning.actions import RolloutEvent
from tidewheel.operator.planning.records import Picture
from tidewheel.operator.planning.rollouts.evidence import TrafficOrder
from tidewheel.operator.planning.rollouts.settings import RolloutDefaults
from tidewheel.rollout.configuration import RolloutConfiguration
from tidewheel.rollout.machine.judging import plan_of
from tidewheel.rollout.machine.state import RolloutState
from tidewheel.rollout.planning.capacity import CapacityPlan
from tidewheel.rollout.planning.detectability import outlook

_NONE: Final = ((), None)
WARNING: Final = "warning: "


def outlook_lines(
    picture: Picture,
    state: RolloutState | None,
    *,
    read: RolloutConfiguration,
    defaults: RolloutDefaults,
    present: RolloutStatus | None,
    room: CapacityPlan | None,
) -> tuple[tuple[str, ...], TrafficOrder | None]:
    """The lines, once for each rollout; and what must be asked first, where it is not known yet."""
    if present is not None and state is not None and present.id == state.id and present.plan:
        return tuple(present.plan), None
    if state is None or state.is_finished or state.base is None or not read.policy.steps:
        return _NONE
    traffic = picture.evidence.traffic
    if traffic is None:
        order = TrafficOrder(version=state.base, scrape_seconds=read.judge.scrape_seconds)
        return (), order if picture.evidence.has_judge else None
    seen = outlook(plan_of(state, read.policy), traffic, settings=read.judge, policy=read.policy)
    head = f"at {traffic.requests_per_second:.3g} requests/s, a healthy version takes {_minutes(seen.seconds)}"
    lines = [head, *(step.in_words() for step in seen.steps)]
    warnings = (*seen.warnings, *((seen.refusal,) if seen.refusal else ()))
    fits = (f"capacity: {room.message}",) if room is not None else ()
    return (*lines, *fits, *(f"{WARNING}{words}" for words in warnings)), None


def outlook_events(
    lines: Sequence[str], present: RolloutStatus | None, state: RolloutState | None
) -> list[RolloutEvent]:
    """The plan is told once, when it is known; each warning is one of its own."""
    known = present is not None and state is not None and present.id == state.id and bool(present.plan)
    if known or not lines:
        return []
    warnings = [line.removeprefix(WARNING) for line in lines if line.startswith(WARNING)]
    return [
        RolloutEvent("RolloutPlanned", lines[0], is_trouble=False),
        *(RolloutEvent("PlanWarning", words, is_trouble=True) for words in warnings),
    ]


def _minutes(seconds: float) -> str:
    return (
        f"about {seconds / 60:.0f} min" if seconds < float("inf") else "for ever: it cannot be cleared at this traffic"
    )
