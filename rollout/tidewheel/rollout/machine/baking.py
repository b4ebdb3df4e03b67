"""The bake: judged time adds up, and a verdict decides what follows."""

from dataclasses import replace
from datetime import UTC, datetime

from tidewheel.crds.rolloutchoices import OnBlind, Patience
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.machine.judging import unconfirmed
from tidewheel.rollout.machine.outcomes import finish
from tidewheel.rollout.machine.situation import Decision, Situation, Transition
from tidewheel.rollout.machine.splits import in_words
from tidewheel.rollout.machine.state import Outcome, RolloutState
from tidewheel.rollout.machine.stepping import hold, next_step

_HOLDING = {VerdictKind.BLIND, VerdictKind.SKEWED}


def bake(situation: Situation, state: RolloutState) -> Decision:
    if not state.judged:
        return next_step(situation, state)
    verdict = situation.verdict
    if verdict is not None and (verdict.rollout_id, verdict.step) != (state.id, state.step):
        state, verdict = replace(state, dropped_verdicts=state.dropped_verdicts + 1), None
    obstacle = _obstacle(situation, state)
    if verdict is not None:
        state = count_time(state, verdict, counts=not obstacle)
    if obstacle:
        return hold(situation, state, reason="ClockStopped", message=obstacle)
    if verdict is None:
        return hold(situation, state, reason="Baking", message=f"{in_words(state.split)}: no verdict yet")
    return _act_on(situation, state, verdict)


def _act_on(situation: Situation, state: RolloutState, verdict: Verdict) -> Decision:
    policy, baked = situation.policy, state.baked_seconds >= state.bake_seconds
    fresh = situation.now.timestamp() - verdict.at <= policy.verdict_max_age_seconds
    clock = f"{in_words(state.split)} baked {state.baked_seconds:.0f}/{state.bake_seconds:.0f} s"
    message = f"{clock}, {verdict.kind.value}: {verdict.message}"
    if verdict.kind is VerdictKind.CLEAR:
        state = replace(state, held_since=None)
        if baked and fresh:
            return next_step(situation, state)
        return hold(situation, state, reason="Baking", message=message)
    holding = verdict.kind in _HOLDING or baked
    since = (state.held_since or situation.now) if holding else None
    state = replace(state, held_since=since)
    held = (situation.now - since).total_seconds() if since is not None else 0.0
    if held >= policy.max_hold_seconds:
        return _held_too_long(situation, state, verdict=verdict, message=message)
    degraded = None
    if verdict.kind is VerdictKind.BLIND and held >= policy.blind_alert_seconds:
        degraded = Transition("Blind", f"nothing can be judged for {held:.0f} s: {verdict.message}")
    return hold(situation, state, reason=verdict.reason, message=message, degraded=degraded)


def _held_too_long(situation: Situation, state: RolloutState, *, verdict: Verdict, message: str) -> Decision:
    policy = situation.policy
    patience = f"held for {policy.max_hold_seconds:.0f} s. {message}"
    thin = verdict.kind in {VerdictKind.THIN, VerdictKind.SKEWED}
    if thin and policy.on_thin is Patience.ADVANCE:
        return next_step(situation, replace(state, reason="AdvancedThin", message=patience))
    if verdict.kind is VerdictKind.BLIND and policy.on_blind is OnBlind.ROLLBACK:
        return finish(
            situation, state, Outcome.ROLLED_BACK, reason="RolledBackBlind", message=patience, split=state.start
        )
    return hold(situation, state, reason="Held", message=patience, stalled=Transition("Held", patience))


def _obstacle(situation: Situation, state: RolloutState) -> str:
    """Why this moment is not judged time."""
    need = max(1, situation.need(state.canary or "", state.split.get(state.canary or "", 0)))
    ready = situation.ready(state.canary)
    if ready < need:
        return f"{state.canary} has {ready} of the {need} replicas that its share needs; the clock stands still"
    if silent := unconfirmed(situation, state):
        return f"gateway(s) {', '.join(silent[:3])} do not confirm the split; the clock stands still"
    return ""


def count_time(state: RolloutState, verdict: Verdict, *, counts: bool) -> RolloutState:
    """Add the verdict's stretch to the bake clock, what was counted before left out."""
    end = verdict.credit[1] if verdict.credit is not None else verdict.at
    until = state.credited_until.timestamp() if state.credited_until is not None else 0.0
    gained = 0.0
    if counts and verdict.credit is not None:
        gained = max(0.0, end - max(verdict.credit[0], until))
    return replace(
        state,
        baked_seconds=state.baked_seconds + gained,
        credited_until=datetime.fromtimestamp(max(end, until), UTC),
        verdict=verdict.kind.value,
    )
