"""From one step to the next, and the answer that nothing changes yet."""

from dataclasses import replace
from datetime import timedelta

from tidewheel.rollout.machine.judging import plan_of, step_context
from tidewheel.rollout.machine.outcomes import finish
from tidewheel.rollout.machine.policy import PlannedStep
from tidewheel.rollout.machine.situation import Decision, Situation, Transition
from tidewheel.rollout.machine.splits import Split, growing, in_words
from tidewheel.rollout.machine.state import Outcome, Phase, RolloutState


def next_step(situation: Situation, state: RolloutState) -> Decision:
    upcoming = following(situation, state)
    if upcoming is None:
        outcome = Outcome.FAST_PROMOTED if state.promoted_by else Outcome.PROMOTED
        by = f" by {state.promoted_by}" if state.promoted_by else ""
        message = f"{in_words(state.split)} is reached{by}"
        return finish(situation, state, outcome, reason=outcome.value, message=message)
    return step_to(situation, state, planned=upcoming, step=state.step + 1)


def step_to(situation: Situation, state: RolloutState, *, planned: PlannedStep, step: int) -> Decision:
    """Only the intention; the weight follows at once, in a write of its own."""
    message = f"step {step + 1} of {state.steps}: towards {in_words(planned.split)}"
    forward = replace(
        state,
        step=step,
        split=planned.split,
        bake_seconds=planned.bake_seconds,
        judged=planned.judged,
        canary_share=planned.canary_share,
        baked_seconds=0.0,
        credited_until=None,
        confirmed_at=None,
        weight_generation=0,
        held_since=None,
        verdict="",
        step_started_at=situation.now,
        phase=Phase.WAITING_FOR_CAPACITY,
        phase_since=situation.now,
        reason="StepPassed",
        message=message,
    )
    event = Transition("StepPassed", f"{in_words(state.split)} passed: {state.message}")
    grown = growing(situation.split, planned.split)
    return Decision(
        state=forward, reason="StepPassed", message=message, grow=grown, events=(event,), wake_at=situation.now
    )


def following(situation: Situation, state: RolloutState) -> PlannedStep | None:
    """The next by share, not by number: steps may have been edited meanwhile."""
    policy = situation.policy if state.start else replace(situation.policy, steps=())
    here = _way(state.start, state.split)
    for planned in plan_of(state, policy):
        if _way(state.start, planned.split) > here:
            return planned
    return None


def _way(start: Split, split: Split) -> int:
    """How far from the start, in basis points that changed hands, twice."""
    return sum(abs(split.get(version, 0) - start.get(version, 0)) for version in {*start, *split})


def hold(
    situation: Situation,
    state: RolloutState,
    *,
    reason: str,
    message: str,
    grow: dict[str, int] | None = None,
    degraded: Transition | None = None,
    stalled: Transition | None = None,
) -> Decision:
    changed = reason != state.reason
    upcoming = following(situation, state) if state.phase is Phase.BAKING else None
    ahead = growing(situation.split, upcoming.split) if upcoming is not None else {}
    return Decision(
        state=replace(state, reason=reason, message=message),
        reason=reason,
        message=message,
        grow=grow if grow is not None else ahead,
        judge=step_context(situation, state),
        events=(Transition(reason, message),) if changed else (),
        degraded=degraded,
        stalled=stalled,
        wake_at=situation.now + timedelta(seconds=situation.policy.tick_seconds),
    )


def enter(situation: Situation, state: RolloutState, phase: Phase) -> RolloutState:
    if state.phase is phase:
        return state
    return replace(state, phase=phase, phase_since=situation.now)
