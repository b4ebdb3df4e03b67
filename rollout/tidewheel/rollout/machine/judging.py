"""What there is to judge: nothing before every gateway has confirmed the weight of the step."""

from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.steps import StepContext
from tidewheel.rollout.machine.policy import PlannedStep, RolloutPolicy, planned_steps
from tidewheel.rollout.machine.situation import Situation
from tidewheel.rollout.machine.state import Phase, RolloutState


def step_context(situation: Situation, state: RolloutState) -> StepContext | None:
    """For the judge; None while there is nothing to judge."""
    if state.phase is not Phase.BAKING or not state.judged or state.confirmed_at is None:
        return None
    started = state.first_weight_at or state.confirmed_at
    slo = situation.slo_seconds.get(state.canary or "", {})
    judged = sum(planned.judged for planned in plan_of(state, situation.policy))
    return StepContext(
        rollout_id=state.id,
        step=state.step,
        judged_steps=max(1, judged),
        canary_share=state.canary_share,
        confirmed_at=state.confirmed_at.timestamp(),
        rollout_started_at=started.timestamp(),
        canary_replicas=state.canary_replicas,
        slo={kind: slo[kind] for kind in Latency if kind in slo},
    )


def unconfirmed(situation: Situation, state: RolloutState) -> list[str]:
    """Gateways that do not obey the step's weight yet. Later writes that move no weight need no confirmation."""
    wanted = state.weight_generation
    if state.judged and not situation.confirmed:
        return ["none is known"]
    return sorted(name for name, obeyed in situation.confirmed.items() if obeyed is None or obeyed < wanted)


def plan_of(state: RolloutState, policy: RolloutPolicy) -> tuple[PlannedStep, ...]:
    """The steps of the rollout as the rule has them now."""
    return planned_steps(state.start, state.goal, policy, base=state.base, canary=state.canary)
