"""The end of a rollout, whichever it is."""

from dataclasses import replace

from tidewheel.rollout.machine.situation import Decision, RejectedDigest, Situation, Transition
from tidewheel.rollout.machine.splits import Split, normal
from tidewheel.rollout.machine.state import LastGood, Outcome, PastRollout, Phase, RolloutState

_HISTORY = 10


def finish(
    situation: Situation,
    state: RolloutState,
    outcome: Outcome,
    *,
    reason: str,
    message: str,
    split: Split | None = None,
    reject: RejectedDigest | None = None,
    answered: bool = True,
    degraded: Transition | None = None,
) -> Decision:
    """The end of the rollout; the split is written only if it is not in force already."""
    last_good = state.last_good
    if outcome in {Outcome.PROMOTED, Outcome.FAST_PROMOTED} and state.canary is not None:
        last_good = LastGood(version=state.canary, digest=state.canary_digest)
    past = PastRollout(id=state.id, outcome=outcome, message=message, finished_at=situation.now)
    ended = replace(
        state,
        phase=Phase.FINISHED,
        phase_since=situation.now,
        outcome=outcome,
        reason=reason,
        message=message,
        finished_at=situation.now,
        last_good=last_good,
        history=(past, *state.history)[:_HISTORY],
    )
    changed = split is not None and normal(split) != normal(situation.split)
    return Decision(
        state=ended,
        reason=reason,
        message=message,
        split=split if changed else None,
        reject=reject,
        answered=answered,
        events=(Transition(reason, message),),
        degraded=degraded,
        wake_at=None if answered else situation.now,
    )
