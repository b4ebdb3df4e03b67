"""A rollout, under way or about to begin: what the step machine decides, as writes and as what to find out next."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidewheel.crds.names import BasisPoints
from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.crds.rolloutstatus import RolloutStatus
from tidewheel.operator.planning.actions import RolloutEvent, SaveRollout
from tidewheel.operator.planning.records import Picture, RuleRecord
from tidewheel.operator.planning.rollouts.evidence import ConfirmationOrder, JudgingOrder, ShadowOrder, TrafficOrder
from tidewheel.operator.planning.rollouts.outlook import outlook_events, outlook_lines
from tidewheel.operator.planning.rollouts.settings import RolloutDefaults, read_rollout, standing_still
from tidewheel.operator.planning.rollouts.situation import Replicas, situation, stored_state
from tidewheel.operator.planning.rollouts.status import rollout_status
from tidewheel.operator.planning.split import Shares
from tidewheel.operator.planning.verdicts import Finding
from tidewheel.rollout.configuration import RolloutConfiguration
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.machine.beginning import capacity_plan
from tidewheel.rollout.machine.decisions import decide
from tidewheel.rollout.machine.situation import Decision
from tidewheel.rollout.machine.state import RolloutState
from tidewheel.rollout.planning.capacity import CapacityPlan

_TROUBLE: Final = frozenset(
    {
        *(
            "RolledBack",
            "NoHealthyTarget",
            "CanaryUnavailable",
            "BaseDown",
            "RollbackForbidden",
            "ClockStopped",
            "Held",
        ),
        *("InvalidRollout", "DoesNotFit", "SplitOverridden"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """What is decided. ``keeps_base``: no replica of a version that takes traffic may go meanwhile."""

    decision: Decision
    status: RolloutStatus | None
    save: SaveRollout | None
    refused: Finding | None = None
    judging: JudgingOrder | None = None
    confirming: ConfirmationOrder | None = None
    traffic: TrafficOrder | None = None
    shadowing: ShadowOrder | None = None
    keeps_base: bool = False

    @property
    def is_running(self) -> bool:
        """Whether a rollout is under way after this decision."""
        return self.decision.state is not None and not self.decision.state.is_finished


def plan_rollout(
    rule: RuleRecord,
    picture: Picture,
    wanted: Shares | None,
    *,
    replicas: Replicas,
    defaults: RolloutDefaults,
    answered: bool,
    new_id: Callable[[], str],
) -> RolloutPlan:
    """One look, from the picture alone. ``wanted`` None: the rule cannot be obeyed, so nothing advances."""
    assert rule.spec is not None
    state = stored_state(picture)
    running = state is not None and not state.is_finished
    refused: Finding | None = None
    try:
        read = read_rollout(rule.spec.rollout, defaults)
    except SettingsError as error:
        refused = Finding("InvalidRollout", f"spec.rollout: {error}")
        read = standing_still()
    blocked = refused is not None or wanted is None
    if wanted is None:
        wanted = {version: BasisPoints(share) for version, share in state.goal.items()} if state is not None else {}
    facts = situation(
        picture,
        wanted,
        policy=read.policy,
        on_capacity=read.on_capacity,
        state=state,
        replicas=replicas,
        answered=answered or (blocked and not running),
        paused=bool(rule.spec.paused) or blocked,
        rollout_id=new_id(),
    )
    try:
        decision = decide(facts, state)
    except SettingsError as error:
        # Steps that were edited into something that cannot be judged: everything stays as it is.
        refused = Finding("InvalidRollout", f"spec.rollout: {error}")
        decision = Decision(state=state, reason=refused.reason, message=refused.message)
    room = (
        capacity_plan(facts, decision.state) if decision.state is not None and not decision.state.is_finished else None
    )
    return _as_plan(rule, picture, decision, read=read, defaults=defaults, refused=refused, room=room)


def _as_plan(
    rule: RuleRecord,
    picture: Picture,
    decision: Decision,
    *,
    read: RolloutConfiguration,
    defaults: RolloutDefaults,
    refused: Finding | None,
    room: CapacityPlan | None,
) -> RolloutPlan:
    state = decision.state
    running = state is not None and not state.is_finished
    present = rule.status.rollout
    lines, traffic = outlook_lines(picture, state, read=read, defaults=defaults, present=present, room=room)
    status = rollout_status(decision, present=present, verdict=picture.evidence.verdict, plan=lines)
    told = (RolloutEvent(event.reason, event.message, event.reason in _TROUBLE) for event in decision.events)
    events = (*told, *outlook_events(lines, present, state))
    save = None
    if status is not None and (status != present or events):
        save = SaveRollout(message=decision.message, rule=rule, rollout=status, events=events)
    return RolloutPlan(
        decision=decision,
        status=status,
        save=save,
        refused=refused,
        judging=_judging(picture, state, decision, read) if state is not None else None,
        confirming=_confirming(picture, state) if running else None,
        traffic=traffic,
        shadowing=_shadowing(picture, state, decision, read) if state is not None else None,
        keeps_base=running and read.on_capacity is OnCapacity.SURGE,
    )


def _judging(
    picture: Picture, state: RolloutState, decision: Decision, read: RolloutConfiguration
) -> JudgingOrder | None:
    if decision.judge is None or state.base is None or state.canary is None:
        return None
    ready = {version: sum(pod.is_serving for pod in picture.pods_of(version)) for version in (state.base, state.canary)}
    return JudgingOrder(context=decision.judge, settings=read.judge, base=state.base, canary=state.canary, ready=ready)


def _shadowing(
    picture: Picture, state: RolloutState, decision: Decision, read: RolloutConfiguration
) -> ShadowOrder | None:
    if not decision.ask_quality or read.policy.quality is None:
        return None
    hosts = [
        next((pod.ip for pod in picture.pods_of(version or "") if pod.is_serving and pod.ip), "")
        for version in (state.base, state.canary)
    ]
    if not all(hosts):
        return None
    return ShadowOrder(rollout_id=state.id, settings=read.policy.quality, base_host=hosts[0], canary_host=hosts[1])


def _confirming(picture: Picture, state: RolloutState | None) -> ConfirmationOrder | None:
    table = picture.table
    if table is None or state is None:
        return None
    return ConfirmationOrder(table_uid=table.meta.uid, generation=state.weight_generation or table.meta.generation)


def wake_moments(plan: RolloutPlan) -> tuple[datetime, ...]:
    """When the decision wants to be looked at again."""
    return (plan.decision.wake_at,) if plan.decision.wake_at is not None else ()
