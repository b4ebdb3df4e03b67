"""What `tidewheel watch` and `why` say of a rollout in every state, and with which exit status."""

from typing import Any

import pytest
from tests.cli.rollback_tables import rejection
from tests.cli.rollout_objects import ERRORS, TPOT, condition, finished, rollout, rule, table

from tidewheel.cli.rollout.progress import Progress, Standing, progress_of
from tidewheel.cli.rollout.watch import EXIT_STATUS, view
from tidewheel.cli.rollout.words import explanation, head, metric_row

PROMOTED = {"v43": 10_000}
BACK = {"v42": 10_000}
PAUSED = {"rolloutId": "r7", "paused": True, "actor": "ada"}


def look(found: dict[str, Any] | None, present: dict[str, Any] | None) -> Progress:
    return progress_of(found, present, namespace="default", model="chat")


@pytest.mark.parametrize(
    ("found", "present", "standing"),
    [
        pytest.param(rule(rollout(), seen=3), table(), Standing.UNSEEN, id="edited a moment ago"),
        pytest.param(rule(rollout()), table(), Standing.MOVING, id="baking"),
        pytest.param(rule(), table(), Standing.MOVING, id="no rollout yet, and not as wanted"),
        pytest.param(rule(rollout()), table(PAUSED), Standing.WAITING_FOR_PERSON, id="paused by a person"),
        pytest.param(
            rule(rollout()), table({**PAUSED, "rolloutId": "r6"}), Standing.MOVING, id="a pause of another rollout"
        ),
        pytest.param(rule(rollout(), paused=True), table(), Standing.WAITING_FOR_PERSON, id="paused in Git"),
        pytest.param(rule(rollout(reason="Held")), table(), Standing.WAITING_FOR_PERSON, id="held too long"),
        pytest.param(
            rule(rollout(), condition("Stalled", reason="InsufficientCapacity")),
            table(),
            Standing.WAITING_FOR_PERSON,
            id="no capacity for too long",
        ),
        pytest.param(rule(rollout(), condition("Degraded", reason="Blind")), table(), Standing.MOVING, id="blind"),
        pytest.param(rule(finished("Promoted")), table(weights=PROMOTED), Standing.DONE, id="promoted"),
        pytest.param(rule(), table(weights=PROMOTED), Standing.DONE, id="as wanted without a rollout"),
        pytest.param(
            rule(finished("Rejected"), condition("Degraded", reason="VersionRejected")),
            table(weights=BACK),
            Standing.FAILED,
            id="rolled back by the judge",
        ),
        pytest.param(rule(finished("RolledBack")), table(weights=BACK), Standing.FAILED, id="rolled back by hand"),
        pytest.param(
            rule(None, condition("Stalled", reason="InvalidRollout")),
            table(weights=BACK),
            Standing.FAILED,
            id="refused",
        ),
        pytest.param(None, table(), Standing.FAILED, id="the rule is gone"),
    ],
)
def test_every_state_has_its_exit_status(
    found: dict[str, Any] | None, present: dict[str, Any] | None, standing: Standing
) -> None:
    """C59: 0 done, 1 rolled back or degraded, 3 still going on, 4 waiting for a person."""
    assert look(found, present).standing is standing
    assert EXIT_STATUS[standing] == {"done": 0, "failed": 1, "waiting for a person": 4}.get(standing.value, 3)


def test_the_head_says_step_share_bake_and_verdict() -> None:
    said = head(look(rule(rollout()), table()))
    assert said == "step 3/5  25.00% (measured 24.80%)  bake 7m20s/10m00s  verdict SUSPECT (hold, clock runs)"


def test_why_has_every_number_and_what_comes_next() -> None:
    lines = explanation(look(rule(rollout()), table()))
    text = "\n".join(lines)
    assert "errors canary 9/6120 (0.147 %), base 17/18240 (0.0932 %), limit +0.5 %  evidence 0.4:1 of 2,400:1" in text
    assert "harm ruled out 31:1  ok" in text
    assert "1.25x (limit 1.20x)  evidence 310:1 of 2,400:1  watch" in text
    assert "why: v42:75% v43:25% baked 440/600 s, SUSPECT" in text
    assert "next: the step can end in 2m40s at the earliest" in text
    assert "next: at this rate decided in about 1m30s" in text
    assert "earlier: r6 Promoted: v42:100% is reached" in text


def test_before_the_first_verdict_why_says_what_can_be_told_at_this_traffic() -> None:
    plan = ["step 1 at 1.000%: 300 canary requests in 10 min, sees +2.1% errors; about 10 min"]
    found = rule(rollout(phase="WaitingForCapacity", verdict="", metrics=[], report=[], plan=plan))
    assert f" plan: {plan[0]}" in explanation(look(found, table()))


@pytest.mark.parametrize(
    ("found", "present", "words"),
    [
        pytest.param(rule(rollout()), table(PAUSED), "`tidewheel resume chat` goes on; a breach still", id="paused"),
        pytest.param(
            rule(rollout()), table({**PAUSED, "noRollback": True}), "a breach does NOT roll back", id="no rollback"
        ),
        pytest.param(rule(rollout(), paused=True), table(), "resume it where that is edited (Git)", id="paused in Git"),
        pytest.param(
            rule(finished("Rejected")),
            table(weights=BACK, rejected=[rejection("v43")]),
            "v43 is rejected: slow (`tidewheel retry chat` tries it again)",
            id="rejected",
        ),
    ],
)
def test_notes_say_what_to_type(found: dict[str, Any], present: dict[str, Any], words: str) -> None:
    assert any(words in line for line in explanation(look(found, present)))


def test_cells_carry_unit_and_number_of_requests() -> None:
    assert metric_row(ERRORS)[:5] == ("errors", "0.15% of 6,120", "0.09% of 18,240", "+0.05 pt", "+0.50 pt")
    assert metric_row(TPOT)[:5] == ("TPOT", "71 ms of 6,000", "57 ms of 18,000", "1.25x", "1.20x")
    assert metric_row({"name": "empty-replies", "standing": "ok", "dryRun": True})[-1] == "dry run"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_view_fits_the_terminal(width: int) -> None:
    from rich.console import Console

    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(look(rule(rollout()), table())))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "verdict SUSPECT" in text
    console.file.close()
