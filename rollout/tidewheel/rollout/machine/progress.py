"""The way forward: capacity, weight, confirmation, bake; then the next step."""

from dataclasses import replace
from datetime import timedelta

from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.rollout.machine.baking import bake, count_time
from tidewheel.rollout.machine.judging import plan_of, unconfirmed
from tidewheel.rollout.machine.shadowing import shadow
from tidewheel.rollout.machine.situation import Decision, Situation, Transition
from tidewheel.rollout.machine.splits import Split, growing, in_words, normal
from tidewheel.rollout.machine.state import Phase, RolloutState
from tidewheel.rollout.machine.stepping import enter, hold, next_step, step_to
from tidewheel.rollout.planning.capacity import as_far_as
from tidewheel.rollout.planning.windows import opens_at


def proceed(situation: Situation, state: RolloutState) -> Decision:
    """Nothing stands in the way of going on."""
    state = replace(state, base_down_since=None)
    if state.reason == "Paused" and not _is_paused(situation, state):
        state = replace(state, phase_since=situation.now)
    in_force = normal(situation.split) == state.split
    if state.phase in {Phase.CONFIRMING, Phase.BAKING} and not in_force:
        # Our own write is gone, as after a restored backup: the step begins again with its weight.
        state = replace(enter(situation, state, Phase.WAITING_FOR_CAPACITY), confirmed_at=None, weight_generation=0)
    if promoted := _promoted(situation, state):
        return promoted
    if _is_paused(situation, state):
        return _pause(situation, state)
    if state.phase in {Phase.WAITING_FOR_CAPACITY, Phase.WAITING_FOR_WINDOW}:
        if in_force:
            return _await_confirmation(situation, enter(situation, state, Phase.CONFIRMING))
        return _raise_weight(situation, state)
    if state.phase is Phase.CONFIRMING:
        return _await_confirmation(situation, state)
    return bake(situation, state)


def _raise_weight(situation: Situation, state: RolloutState) -> Decision:
    """Capacity first; then, if the hour allows it, the weight."""
    grown = growing(situation.split, state.split)
    short = [
        f"{need} replica(s) of {version} (ready: {situation.ready(version)})"
        for version, share in grown.items()
        if situation.ready(version) < (need := max(1, situation.need(version, share)))
    ]
    policy = situation.policy
    target = _making_room(situation, state) if short else state.split
    if target is None:
        message = f"{in_words(state.split)} waits for {' and '.join(short)}"
        deadline = state.phase_since + timedelta(seconds=policy.capacity_deadline_seconds)
        late = situation.now >= deadline and state.phase is Phase.WAITING_FOR_CAPACITY
        stalled = Transition("InsufficientCapacity", f"{message} since {state.phase_since:%H:%M}Z") if late else None
        waiting = enter(situation, state, Phase.WAITING_FOR_CAPACITY)
        return hold(situation, waiting, reason="WaitingForCapacity", message=message, grow=grown, stalled=stalled)
    state, kept_back = shadow(situation, state)
    if kept_back is not None:
        return kept_back
    opening = opens_at(policy.change_windows, situation.now) if policy.change_windows else situation.now
    if opening is None or opening > situation.now:
        when = f"until {opening:%a %H:%M}Z" if opening else "for more than a week"
        message = f"{in_words(state.split)} waits for its change window, closed {when}"
        waiting = enter(situation, state, Phase.WAITING_FOR_WINDOW)
        return replace(
            hold(situation, waiting, reason="ChangeWindowClosed", message=message, grow=grown), wake_at=opening
        )
    if target != state.split:
        return _walk(situation, state, target)
    message = f"step {state.step + 1} of {state.steps}: {in_words(situation.split)} -> {in_words(state.split)}"
    written = replace(enter(situation, state, Phase.CONFIRMING), weight_generation=0)
    written = replace(
        written, reason="StepStarted", message=message, first_weight_at=state.first_weight_at or situation.now
    )
    return Decision(
        state=written,
        reason="StepStarted",
        message=message,
        split=state.split,
        grow=grown,
        events=(Transition("StepStarted", message),),
        wake_at=situation.now,
    )


def _making_room(situation: Situation, state: RolloutState) -> Split | None:
    """With `onCapacity: Replace`: what the canary's ready replicas carry already. None: no more than it has."""
    canary = state.canary
    if situation.on_capacity is not OnCapacity.REPLACE or canary is None or not situation.ready(canary):
        return None
    replicas, current = situation.ready(canary), normal(situation.split)
    reached = as_far_as(current, state.split, version=canary, replicas=replicas, need=situation.need)
    return reached if reached.get(canary, 0) > current.get(canary, 0) else None


def _walk(situation: Situation, state: RolloutState, target: Split) -> Decision:
    """A part of the way to the step's weight: base shrinks behind it, and the canary grows into the room."""
    message = (
        f"{in_words(situation.split)} -> {in_words(target)}, as far as {situation.ready(state.canary)} replica(s) of "
        f"{state.canary} carry it; {state.base} makes room for the next (onCapacity: Replace)"
    )
    walked = replace(
        state,
        phase=Phase.WAITING_FOR_CAPACITY,
        phase_since=situation.now,
        reason="MakingRoom",
        message=message,
        first_weight_at=state.first_weight_at or situation.now,
    )
    return Decision(
        state=walked,
        reason="MakingRoom",
        message=message,
        split=target,
        grow=growing(target, state.split),
        events=(Transition("MakingRoom", message),),
        wake_at=situation.now,
    )


def _await_confirmation(situation: Situation, state: RolloutState) -> Decision:
    if not state.weight_generation and situation.table is not None:
        state = replace(state, weight_generation=situation.table.generation)
    silent = unconfirmed(situation, state)
    if silent:
        message = f"{in_words(state.split)} waits for {len(silent)} gateway(s) to confirm: {', '.join(silent[:3])}"
        late = situation.now >= state.phase_since + timedelta(seconds=situation.policy.confirm_seconds)
        degraded = Transition("GatewaysNotConfirming", message) if late else None
        return hold(situation, state, reason="Confirming", message=message, degraded=degraded)
    baking = replace(
        enter(situation, state, Phase.BAKING),
        confirmed_at=situation.now,
        canary_replicas=max(1, situation.ready(state.canary)),
        first_weight_at=state.first_weight_at or situation.now,
        held_since=None,
    )
    if not state.judged:
        return next_step(situation, baking)
    message = f"every gateway sends {in_words(state.split)}; judging for at least {state.bake_seconds:.0f} s"
    return hold(situation, baking, reason="Baking", message=message)


def _promoted(situation: Situation, state: RolloutState) -> Decision | None:
    """A person goes to a later step without the judge; not without replicas, and a pause holds it."""
    control = situation.table.control if situation.table is not None else None
    if control is None or control.rollout_id != state.id or control.promote_step is None or control.paused:
        return None
    steps = plan_of(state, situation.policy) if state.start else ()
    wanted = min(control.promote_step, len(steps))
    if situation.paused or wanted <= state.step + 1:
        return None
    marked = replace(state, promoted_by=control.actor or "somebody", message=f"promoted by {control.actor}")
    return step_to(situation, marked, planned=steps[wanted - 1], step=wanted - 1)


def _is_paused(situation: Situation, state: RolloutState) -> bool:
    control = situation.table.control if situation.table is not None else None
    return situation.paused or (control is not None and control.rollout_id == state.id and control.paused)


def _pause(situation: Situation, state: RolloutState) -> Decision:
    """Weight and clock stand still; the judge goes on, and a breach still rolls back."""
    verdict = situation.verdict
    if verdict is not None and (verdict.rollout_id, verdict.step) == (state.id, state.step):
        state = count_time(state, verdict, counts=False)
    state = replace(state, held_since=None)
    message = f"paused at {in_words(situation.split)}; `tidewheel resume` goes on, a breach still rolls back"
    return replace(hold(situation, state, reason="Paused", message=message), suspended=True)
