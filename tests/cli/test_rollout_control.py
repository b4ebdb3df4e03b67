"""What `pause`, `resume`, `promote` and `retry` write, and when they refuse."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.cli.rollback_tables import rejection
from tests.cli.rollout_objects import finished, rollout, rule, table

from tidewheel.cli.rollout.control import ControlPlan, ControlRefusedError, Request, Verb, plan_control

NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
PAUSED = {"rolloutId": "r7", "paused": True, "actor": "bob", "at": "2026-01-01T00:00:00Z"}


def plan(
    request: Request, *, found: dict[str, Any] | None = None, present: dict[str, Any] | None = None
) -> ControlPlan:
    return plan_control(request, rule=found or rule(rollout()), table=present or table(), actor="ada", now=NOW)


def written(done: ControlPlan) -> dict[str, Any]:
    value: dict[str, Any] = done.operations[-1]["value"]
    return value


@pytest.mark.parametrize(
    ("request_", "present", "control"),
    [
        pytest.param(Request(verb=Verb.PAUSE), table(), {"paused": True}, id="pause"),
        pytest.param(
            Request(verb=Verb.PAUSE, no_rollback=True), table(PAUSED), {"paused": True, "noRollback": True}, id="harder"
        ),
        pytest.param(Request(verb=Verb.RESUME), table(PAUSED), {"paused": False}, id="resume"),
        pytest.param(Request(verb=Verb.PROMOTE), table(), {"paused": False, "promoteStep": 5}, id="promote"),
        pytest.param(
            Request(verb=Verb.PROMOTE, only_next=True), table(), {"paused": False, "promoteStep": 4}, id="one step"
        ),
        pytest.param(Request(verb=Verb.PROMOTE, step=4), table(), {"paused": False, "promoteStep": 4}, id="to a step"),
    ],
)
def test_a_word_names_its_rollout_and_is_written_onto_what_was_read(
    request_: Request, present: dict[str, Any], control: dict[str, Any]
) -> None:
    """C04: what is typed for one rollout never acts on its successor."""
    done = plan(request_, present=present)
    assert done.operations[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "41"}
    assert done.operations[1]["path"] == "/spec/control"
    assert len(done.operations) == 2
    assert written(done) == {"rolloutId": "r7", **control, "actor": "ada", "at": "2026-01-01T01:00:00Z"}


@pytest.mark.parametrize(
    ("request_", "present"),
    [
        pytest.param(Request(verb=Verb.PAUSE), table(PAUSED), id="paused already"),
        pytest.param(Request(verb=Verb.RESUME), table(), id="not paused"),
        pytest.param(Request(verb=Verb.RESUME), table({**PAUSED, "rolloutId": "r6"}), id="a predecessor was paused"),
    ],
)
def test_what_is_so_already_writes_nothing(request_: Request, present: dict[str, Any]) -> None:
    assert not plan(request_, present=present).is_needed


@pytest.mark.parametrize(
    ("request_", "found", "words"),
    [
        pytest.param(Request(verb=Verb.PAUSE), rule(), "has had no rollout yet", id="never had one"),
        pytest.param(Request(verb=Verb.PAUSE), rule(finished("Promoted")), "r7 ended Promoted", id="it has ended"),
        pytest.param(Request(verb=Verb.PROMOTE, rollout_id="r6"), None, "r6 is over; chat is at rollout r7", id="C04"),
        pytest.param(
            Request(verb=Verb.RESUME), rule(rollout(), paused=True), "spec.paused to false", id="paused in Git"
        ),
        pytest.param(Request(verb=Verb.PROMOTE, step=2), None, "forward only", id="backwards"),
        pytest.param(Request(verb=Verb.PROMOTE, step=9), None, "there is no step 9", id="too far"),
        pytest.param(Request(verb=Verb.RETRY), None, "no version is both rejected and wanted", id="nothing rejected"),
    ],
)
def test_a_refusal_says_what_to_do(request_: Request, found: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(ControlRefusedError, match=words):
        plan(request_, found=found)


def test_the_last_step_cannot_be_promoted_further() -> None:
    assert not plan(Request(verb=Verb.PROMOTE), found=rule(rollout(step=4))).is_needed


def test_retry_names_the_digest_that_was_rejected() -> None:
    done = plan(
        Request(verb=Verb.RETRY),
        found=rule(finished("Rejected")),
        present=table(weights={"v42": 10_000}, rejected=[rejection("v41"), rejection("v43")]),
    )
    assert written(done)["retryDigest"] == "sha256:v43"
    assert "judged again from the first step" in done.message


def test_retry_of_a_version_that_nobody_wants_is_refused() -> None:
    with pytest.raises(ControlRefusedError, match=r"v41 is not both rejected and wanted .*wanted: v43"):
        plan(Request(verb=Verb.RETRY, version="v41"), present=table(rejected=[rejection("v41")]))
