"""How a rollout starts, or why it does not."""

from dataclasses import replace
from datetime import timedelta

from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.machine.judging import plan_of
from tidewheel.rollout.machine.policy import PlannedStep, planned_steps
from tidewheel.rollout.machine.situation import Decision, Situation, Transition
from tidewheel.rollout.machine.splits import Split, base_of, growing, in_words, normal
from tidewheel.rollout.machine.state import Phase, RolloutState
from tidewheel.rollout.planning.capacity import CapacityPlan, PoolFacts, plan_capacity


def begin(situation: Situation, last: RolloutState | None) -> Decision:  # noqa: PLR0911 - one line per case
    """Nothing moves now; see whether the rule asks for something that was not answered."""
    goal, current = normal(situation.goal), normal(situation.split)
    grown = growing(current, goal)
    retry = _retried(situation, grown)
    if goal == current:
        return Decision(state=last, reason="UpToDate", message=f"traffic is as wanted: {in_words(goal)}", answered=True)
    for version in grown:
        if retry != situation.digest(version) and (refusal := _rejection(situation, version)) is not None:
            return Decision(state=last, reason=refusal.reason, message=refusal.message, degraded=refusal)
    if situation.answered and retry is None:
        return Decision(
            state=last, reason="Answered", message=f"the rule was answered; the split stays {in_words(current)}"
        )
    if last is None and (resumed := _resume(situation)) is not None:
        return Decision(
            state=resumed,
            reason="Resumed",
            message=f"progress was lost; step {resumed.step + 1} of {resumed.steps} starts again",
            grow=grown,
            wake_at=situation.now,
            events=(Transition("RolloutResumed", f"progress was lost; step {resumed.step + 1} starts again"),),
        )
    try:
        state = _first_step(situation, last, start=current, rollout_id=situation.new_rollout_id)
        room = capacity_plan(situation, state)
        if room is not None and not room.fits:
            return _refuse_for_room(situation, last, room)
    except SettingsError as error:
        refused = Transition("InvalidRollout", str(error))
        return Decision(state=last, reason=refused.reason, message=refused.message, stalled=refused)
    return Decision(
        state=state,
        reason="RolloutStarted",
        message=state.message,
        unreject=retry,
        grow=growing(current, state.split),
        events=(Transition("RolloutStarted", state.message),),
        wake_at=situation.now,
    )


def capacity_plan(situation: Situation, state: RolloutState) -> CapacityPlan | None:
    """Whether the rollout fits; None where the size of the pool is not known, or nothing is replaced."""
    base, canary = situation.versions.get(state.base or ""), situation.versions.get(state.canary or "")
    if situation.gpus_free is None or base is None or canary is None or not state.start or not situation.policy.steps:
        return None
    assert state.base is not None
    assert state.canary is not None
    return plan_capacity(
        plan_of(state, situation.policy),
        start=state.start,
        base=state.base,
        canary=state.canary,
        need=situation.need,
        pool=PoolFacts(
            gpus_free=situation.gpus_free,
            base_replicas=base.present,
            base_gpus=base.gpus,
            canary_replicas=canary.present,
            canary_gpus=canary.gpus,
        ),
        mode=situation.on_capacity,
    )


def _refuse_for_room(situation: Situation, last: RolloutState | None, room: CapacityPlan) -> Decision:
    """Nothing is started; it is looked at again, for GPUs may become free."""
    refused = Transition(room.reason, room.message)
    return Decision(
        state=last,
        reason=room.reason,
        message=room.message,
        stalled=refused,
        wake_at=situation.now + timedelta(seconds=situation.policy.tick_seconds),
    )


def retarget(situation: Situation, state: RolloutState) -> Decision | None:
    """Another end state for the same canary: a new rollout from the same start that goes on from the share it has.

    None: the canary is not what grows any more.
    """
    try:
        base, canary, steps = _plan(situation, state.start)
    except SettingsError:
        return None
    if canary is None or canary != state.canary or not state.start:
        return None
    share = situation.split.get(canary, 0)
    step = next((number for number, step in enumerate(steps) if step.split.get(canary, 0) >= share), len(steps) - 1)
    message = f"the rule now asks for {in_words(situation.goal)}; {canary} goes on from {share / 100:g} %"
    following = _state(
        situation,
        state,
        start=state.start,
        rollout_id=situation.new_rollout_id,
        base=base,
        canary=canary,
        steps=steps,
        step=step,
    )
    return Decision(
        state=replace(following, reason="Retargeted", message=message, first_weight_at=state.first_weight_at),
        reason="Retargeted",
        message=message,
        grow=growing(situation.split, following.split),
        events=(Transition("Retargeted", message),),
        wake_at=situation.now,
    )


def _retried(situation: Situation, grown: Split) -> str | None:
    """The digest that a person asked to try once more."""
    table = situation.table
    if table is None or table.control is None or table.control.retry_digest is None:
        return None
    digest = table.control.retry_digest
    wanted = any(situation.digest(version) == digest for version in grown)
    return digest if wanted and table.rejection_of(digest) is not None else None


def _rejection(situation: Situation, version: str) -> Transition | None:
    table, digest = situation.table, situation.digest(version)
    entry = table.rejection_of(digest) if table is not None and digest else None
    if entry is None:
        return None
    return Transition(
        "VersionRejected",
        f"version {version} was rejected: {entry.reason}. Name another version, or `tidewheel retry` to judge it again",
    )


def _first_step(situation: Situation, last: RolloutState | None, *, start: Split, rollout_id: str) -> RolloutState:
    base, canary, steps = _plan(situation, start)
    return _state(situation, last, start=start, rollout_id=rollout_id, base=base, canary=canary, steps=steps, step=0)


def _plan(situation: Situation, start: Split) -> tuple[str | None, str | None, tuple[PlannedStep, ...]]:
    """Raises SettingsError where the move cannot be judged as it is asked for."""
    goal = normal(situation.goal)
    grown = growing(start, goal)
    base = base_of(start, goal)
    canary = next(iter(grown)) if len(grown) == 1 else None
    # A first deployment has nothing to compare with, so its steps are skipped, not its readiness.
    policy = situation.policy if start else replace(situation.policy, steps=())
    if policy.steps and len(grown) > 1:
        raise SettingsError(
            f"spec.traffic grows {' and '.join(grown)} at once; a rollout judges one version: let them grow one after "
            "the other, or remove spec.rollout.steps to move at once"
        )
    return base, canary, planned_steps(start, goal, policy, base=base, canary=canary)


def _state(
    situation: Situation,
    last: RolloutState | None,
    *,
    start: Split,
    rollout_id: str,
    base: str | None,
    canary: str | None,
    steps: tuple[PlannedStep, ...],
    step: int,
) -> RolloutState:
    planned = steps[step]
    return RolloutState(
        id=rollout_id,
        start=normal(start),
        goal=normal(situation.goal),
        base=base,
        canary=canary,
        canary_digest=situation.digest(canary),
        steps=len(steps),
        step=step,
        split=planned.split,
        bake_seconds=planned.bake_seconds,
        judged=planned.judged,
        canary_share=planned.canary_share,
        started_at=situation.now,
        step_started_at=situation.now,
        phase=Phase.WAITING_FOR_CAPACITY,
        phase_since=situation.now,
        table_generation=situation.table.generation if situation.table is not None else 0,
        reason="RolloutStarted",
        message=f"from {in_words(start)} to {in_words(situation.goal)} in {len(steps)} step(s)",
        last_good=last.last_good if last is not None else None,
        history=last.history if last is not None else (),
    )


def _resume(situation: Situation) -> RolloutState | None:
    """The table is in the middle of a rollout whose progress was lost (a restored backup): its step starts again."""
    table = situation.table
    if table is None or not table.rollout_id or table.by_person or not table.previous:
        return None
    start = normal(table.previous)
    try:
        base, canary, steps = _plan(situation, start)
    except SettingsError:
        return None
    here = [number for number, step in enumerate(steps) if step.split == normal(table.split)]
    if not here and situation.on_capacity is OnCapacity.REPLACE and canary is not None:
        # Between two steps: the canary had as much as its replicas could carry.
        share = table.split.get(canary, 0)
        here = [number for number, step in enumerate(steps) if step.split.get(canary, 0) > share]
    if not here:
        return None
    return _state(
        situation,
        None,
        start=start,
        rollout_id=table.rollout_id,
        base=base,
        canary=canary,
        steps=steps,
        step=here[0],
    )
