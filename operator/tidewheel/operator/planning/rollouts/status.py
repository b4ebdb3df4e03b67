"""``status.rollout``: the state that an operator goes on from, and what people want to read beside it."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tidewheel.crds.rolloutstatus import RolloutStatus
from tidewheel.operator.moments import format_moment
from tidewheel.rollout.judge.findings import Verdict
from tidewheel.rollout.judge.report import report, status_metrics
from tidewheel.rollout.machine.situation import Decision
from tidewheel.rollout.machine.state import Phase, RolloutState, to_json

_MESSAGE: Final = 4096
_PAST_MESSAGE: Final = 2048
_LINE: Final = 1024
_OF_THE_STEP: Final = ("metrics", "report", "observed_share", "judged_at")


def rollout_status(
    decision: Decision, *, present: RolloutStatus | None, verdict: Verdict | None, plan: tuple[str, ...]
) -> RolloutStatus | None:
    """The status as it should be stored. What the judge said last stays until it says something else of this step."""
    state = decision.state
    if state is None:
        return None
    written: dict[str, Any] = to_json(state)
    written["message"] = state.message[:_MESSAGE]
    for past in written.get("history", ()):
        past["message"] = past["message"][:_PAST_MESSAGE]
    written["progress"] = state.outcome.value if state.outcome is not None else f"{state.step + 1}/{state.steps}"
    if decision.suspended:
        written["suspended"] = True
    if earliest := _earliest(state, decision):
        written["earliestAt"] = earliest
    written["plan"] = [line[:_LINE] for line in plan][:48]
    written |= _judgement(state, present=present, verdict=verdict)
    return RolloutStatus.model_validate(written)


def _judgement(state: RolloutState, *, present: RolloutStatus | None, verdict: Verdict | None) -> dict[str, Any]:
    if verdict is not None and (verdict.rollout_id, verdict.step) == (state.id, state.step) and state.judged:
        both = verdict.canary_requests + verdict.base_requests
        lines = report(
            verdict,
            step=state.step + 1,
            steps=state.steps,
            share=state.canary_share,
            baked=state.baked_seconds,
            bake=state.bake_seconds,
        )
        said: dict[str, Any] = {
            "metrics": [_fitted(entry) for entry in status_metrics(verdict)][:16],
            "report": [line[:_LINE] for line in lines][:32],
            "judgedAt": format_moment(datetime.fromtimestamp(verdict.at, UTC)),
        }
        return said | ({"observedShare": round(verdict.canary_requests / both, 4)} if both else {})
    if present is None or (present.id, present.step) != (state.id, state.step):
        return {}
    kept = present.model_dump(mode="json", by_alias=True, exclude_none=True, include=set(_OF_THE_STEP))
    return {name: value for name, value in kept.items() if value}


def _earliest(state: RolloutState, decision: Decision) -> str | None:
    """When the bake is over, if every look from now on counts; nothing that moves with the present moment."""
    since = state.credited_until or state.confirmed_at
    running = state.phase is Phase.BAKING and state.judged and not decision.suspended
    if not running or since is None or state.baked_seconds >= state.bake_seconds:
        return None
    return format_moment(since + timedelta(seconds=state.bake_seconds - state.baked_seconds))


def _fitted(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "message": str(entry.get("message", ""))[:_LINE]}
