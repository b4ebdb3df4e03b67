"""What ends a rollout before its time, in the order in which it outranks the rest."""

from dataclasses import replace
from datetime import timedelta

from tidewheel.crds.rolloutchoices import OnCapacity, Patience
from tidewheel.rollout.judge.findings import Verdict
from tidewheel.rollout.machine.beginning import retarget
from tidewheel.rollout.machine.judging import step_context
from tidewheel.rollout.machine.outcomes import finish
from tidewheel.rollout.machine.situation import Decision, RejectedDigest, Situation, Transition
from tidewheel.rollout.machine.splits import Split, in_words, normal
from tidewheel.rollout.machine.state import Outcome, Phase, RolloutState
from tidewheel.rollout.planning.capacity import as_far_as


def interrupt(situation: Situation, state: RolloutState) -> Decision | None:
    """The first of: a person's own split, our own unfinished way back, another target, a breach, a dead base."""
    return (
        _by_hand(situation, state)
        or _unfinished_rejection(situation, state)
        or _other_target(situation, state)
        or _breach(situation, state)
        or _base_down(situation, state)
    )


def roll_back(situation: Situation, state: RolloutState, verdict: Verdict) -> Decision:
    """Back to where it started, and the digest is remembered. Waits for nothing."""
    words = f"{state.canary} rolled back at {in_words(state.split)}: {verdict.message}"
    if situation.ready(state.base) == 0 and situation.ready(state.canary) > 0:
        trouble = Transition("NoHealthyTarget", f"{state.base} has no ready replica to go back to. {words}")
        return Decision(
            state=replace(state, reason=trouble.reason, message=trouble.message),
            reason=trouble.reason,
            message=trouble.message,
            degraded=trouble,
            grow=dict(state.start),
            judge=step_context(situation, state),
            wake_at=situation.now + timedelta(seconds=situation.policy.tick_seconds),
        )
    reject = RejectedDigest(state.canary_digest, state.canary or "", verdict.message)
    degraded = Transition("VersionRejected", words)
    return finish(
        situation,
        state,
        Outcome.REJECTED,
        reason="RolledBack",
        message=words,
        split=state.start,
        reject=reject,
        degraded=degraded,
    )


def canary_down(situation: Situation, state: RolloutState) -> Decision | None:
    """No replica of the canary is left: nobody is sent there; the step is kept and goes on once it is back."""
    weight = situation.split.get(state.canary or "", 0)
    grown = weight > state.start.get(state.canary or "", 0)
    if not grown or not state.start or situation.ready(state.canary) > 0 or situation.ready(state.base) == 0:
        return None
    message = f"{state.canary} has no ready replica; its traffic goes to {in_words(state.start)} until it has"
    waiting = replace(
        state,
        phase=Phase.WAITING_FOR_CAPACITY,
        phase_since=situation.now,
        confirmed_at=None,
        weight_generation=0,
        reason="CanaryUnavailable",
        message=message,
    )
    return Decision(
        state=waiting,
        reason="CanaryUnavailable",
        message=message,
        split=state.start,
        grow=dict(state.split),
        events=(Transition("CanaryUnavailable", message),),
        wake_at=situation.now + timedelta(seconds=situation.policy.tick_seconds),
    )


def _by_hand(situation: Situation, state: RolloutState) -> Decision | None:
    table = situation.table
    if table is None or not table.by_person or table.generation <= state.table_generation:
        return None
    who = table.actor or "somebody"
    rejection = table.rejection_of(state.canary_digest)
    if rejection is not None:
        message = f"{who} rolled back to {in_words(table.split)}"
        degraded = Transition("VersionRejected", f"{state.canary} was rejected: {rejection.reason or message}")
        return finish(situation, state, Outcome.ROLLED_BACK, reason="RolledBack", message=message, degraded=degraded)
    if normal(table.split) == (state.start if state.first_weight_at is None else state.split):
        # Theirs from before this rollout, or nothing but a note of theirs (a pause) since our last write.
        return None
    if normal(table.split) == state.goal:
        message = f"{who} promoted to {in_words(table.split)}"
        return finish(situation, state, Outcome.FAST_PROMOTED, reason="FastPromoted", message=message)
    message = f"{who} set {in_words(table.split)}; it stays until spec.traffic changes"
    return finish(situation, state, Outcome.ABORTED, reason="SplitOverridden", message=message)


def _unfinished_rejection(situation: Situation, state: RolloutState) -> Decision | None:
    """The table has our rollback, the state does not: the operator ended between the two writes."""
    table = situation.table
    rejection = table.rejection_of(state.canary_digest) if table is not None and state.canary_digest else None
    if rejection is None:
        return None
    message = f"{state.canary} rolled back: {rejection.reason}"
    return finish(
        situation,
        state,
        Outcome.REJECTED,
        reason="RolledBack",
        message=message,
        split=state.start,
        degraded=Transition("VersionRejected", message),
    )


def _other_target(situation: Situation, state: RolloutState) -> Decision | None:
    goal = normal(situation.goal)
    changed_digest = bool(state.canary) and situation.digest(state.canary) != state.canary_digest
    if goal == state.goal and not changed_digest:
        return None
    back = state.start or situation.split
    if goal == state.start and not changed_digest:
        message = f"the rule went back to {in_words(goal)}"
        return finish(situation, state, Outcome.ROLLED_BACK, reason="RolledBack", message=message, split=back)
    if not changed_digest and (going_on := retarget(situation, state)) is not None:
        return going_on
    why = f"{state.canary} is another digest now" if changed_digest else f"the rule now asks for {in_words(goal)}"
    short = _short_of_base(situation, state)
    if short is not None:
        return short
    message = f"{why}; back to {in_words(back)} first"
    return finish(
        situation, state, Outcome.SUPERSEDED, reason="Superseded", message=message, split=back, answered=False
    )


def _short_of_base(situation: Situation, state: RolloutState) -> Decision | None:
    """Base was shrunk to make room: it grows again before the canary's traffic comes back to it."""
    if state.base is None or situation.ready(state.canary) == 0:
        return None
    need, ready = situation.need(state.base, state.start.get(state.base, 0)), situation.ready(state.base)
    if ready >= need:
        return None
    message = f"waits for {need} replicas of {state.base} (ready: {ready}) before {state.canary} gives its traffic back"
    return Decision(
        state=replace(state, reason="WaitingForBase", message=message),
        reason="WaitingForBase",
        message=message,
        split=_as_base_carries(situation, state, ready),
        grow=dict(state.start),
        judge=step_context(situation, state),
        wake_at=situation.now + timedelta(seconds=situation.policy.tick_seconds),
    )


def _as_base_carries(situation: Situation, state: RolloutState, ready: int) -> Split | None:
    """With `onCapacity: Replace`: back in parts, for base grows into the room that the canary leaves."""
    base, current = state.base or "", normal(situation.split)
    if situation.on_capacity is not OnCapacity.REPLACE:
        return None
    reached = as_far_as(current, state.start, version=base, replicas=ready, need=situation.need)
    return reached if reached.get(base, 0) > current.get(base, 0) else None


def _breach(situation: Situation, state: RolloutState) -> Decision | None:
    verdict, table = situation.verdict, situation.table
    if verdict is None or not verdict.rolls_back or (verdict.rollout_id, verdict.step) != (state.id, state.step):
        return None
    control = table.control if table is not None else None
    if control is not None and control.rollout_id == state.id and control.paused and control.no_rollback:
        message = f"{control.actor} forbade a rollback while paused, although {verdict.message}"
        return Decision(
            state=replace(state, verdict=verdict.kind.value, reason="RollbackForbidden", message=message),
            reason="RollbackForbidden",
            message=message,
            degraded=Transition("RollbackForbidden", message),
            suspended=True,
            judge=step_context(situation, state),
            wake_at=situation.now + timedelta(seconds=situation.policy.tick_seconds),
        )
    return roll_back(situation, replace(state, verdict=verdict.kind.value), verdict)


def _base_down(situation: Situation, state: RolloutState) -> Decision | None:
    """Base is dead and the canary is not: after a while, and by policy, everybody goes to the canary."""
    if state.base is None or situation.ready(state.base) > 0 or situation.ready(state.canary) == 0:
        return None
    since = state.base_down_since or situation.now
    deadline = since + timedelta(seconds=situation.policy.base_down_seconds)
    marked = replace(state, base_down_since=since)
    if situation.now >= deadline and situation.policy.on_base_down is Patience.ADVANCE:
        message = f"{state.base} has no ready replica since {since:%H:%M:%S}; all traffic goes to {state.canary}"
        return finish(
            situation,
            marked,
            Outcome.FAST_PROMOTED,
            reason="BaseDown",
            message=message,
            split=_without_base(situation.split, state),
            degraded=Transition("BaseDown", message),
        )
    message = f"{state.base} has no ready replica; {state.canary} keeps its share of {in_words(situation.split)}"
    return Decision(
        state=replace(marked, reason="BaseDown", message=message),
        reason="BaseDown",
        message=message,
        degraded=Transition("BaseDown", message),
        grow=dict(state.start),
        judge=step_context(situation, state),
        wake_at=max(deadline, situation.now + timedelta(seconds=situation.policy.tick_seconds)),
    )


def _without_base(split: Split, state: RolloutState) -> Split:
    """The canary gets what base had; other versions keep theirs."""
    base, canary = state.base or "", state.canary or ""
    rest = {version: share for version, share in split.items() if version != base}
    return {**rest, canary: rest.get(canary, 0) + split.get(base, 0)}
