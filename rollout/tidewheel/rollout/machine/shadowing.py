"""Before the first weight, where the rule asks for it: both versions answer a fixed set of prompts.

A canary at weight 0 serves nobody, so a broken one is found at the price of a few streams. The answer holds or rolls
back by the rule's choice; a person may pass it (`tidewheel promote`).
"""

from dataclasses import replace

from tidewheel.crds.rolloutchoices import OnBreach
from tidewheel.rollout.machine.outcomes import finish
from tidewheel.rollout.machine.situation import Decision, RejectedDigest, Situation, Transition
from tidewheel.rollout.machine.splits import growing
from tidewheel.rollout.machine.state import Outcome, RolloutState
from tidewheel.rollout.machine.stepping import hold
from tidewheel.rollout.quality.scoring import QualityKind


def shadow(situation: Situation, state: RolloutState) -> tuple[RolloutState, Decision | None]:
    """The state with what is known, and what keeps the first weight back; None: nothing does."""
    settings, verdict = situation.policy.quality, situation.quality
    if settings is None or not state.judged or state.first_weight_at is not None or state.promoted_by:
        return state, None
    if verdict is not None and verdict.rollout_id == state.id:
        state = replace(state, quality=verdict.kind.value, quality_message=verdict.message)
    if state.quality == QualityKind.CLEAR:
        return state, None
    if state.quality == QualityKind.BREACH and settings.on_breach is OnBreach.ROLLBACK:
        return state, _reject(situation, state)
    if state.quality in {QualityKind.BREACH, QualityKind.SUSPECT}:
        return state, _await_person(situation, state)
    why = f"; last time {state.quality_message}" if state.quality else ""
    message = f"{state.canary} answers shadow prompts before it gets users{why}"
    grown = growing(situation.split, state.split)
    asking = hold(situation, state, reason="ShadowPrompts", message=message, grow=grown)
    return state, replace(asking, ask_quality=True)


def _await_person(situation: Situation, state: RolloutState) -> Decision:
    message = f"{state.quality_message}; `tidewheel promote` passes it, `kubectl rollback` or another version ends it"
    stalled = Transition("QualityHeld", message)
    grown = growing(situation.split, state.split)
    held = hold(situation, state, reason="QualityHeld", message=message, grow=grown, stalled=stalled)
    return replace(held, suspended=True)


def _reject(situation: Situation, state: RolloutState) -> Decision:
    """No weight was given, so there is nothing to take back but the intention."""
    message = f"{state.canary} got no users: {state.quality_message}"
    return finish(
        situation,
        state,
        Outcome.REJECTED,
        reason="QualityRejected",
        message=message,
        split=state.start,
        reject=RejectedDigest(state.canary_digest, state.canary or "", state.quality_message),
        degraded=Transition("VersionRejected", message),
    )
