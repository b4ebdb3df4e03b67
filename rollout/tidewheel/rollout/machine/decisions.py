"""One look: from the situation and the state of the rollout to what is done now.

Level-triggered: whatever happened since the last look, the same situation gives the same answer. A step's intention is
in the state before its weight is written, so a crash between two writes repeats a write and never skips one; the way
back is written to the table first, and recognised there.
"""

from tidewheel.rollout.machine.beginning import begin
from tidewheel.rollout.machine.interruptions import canary_down, interrupt
from tidewheel.rollout.machine.progress import proceed
from tidewheel.rollout.machine.situation import Decision, Situation
from tidewheel.rollout.machine.state import RolloutState


def decide(situation: Situation, state: RolloutState | None) -> Decision:
    """What to do now. Abort outranks promote, promote outranks waiting, and a pause outranks both of these."""
    if state is None or state.is_finished:
        return begin(situation, state)
    return interrupt(situation, state) or canary_down(situation, state) or proceed(situation, state)
