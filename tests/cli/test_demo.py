"""The parts of the demo that need no cluster."""

from typing import Any

import pytest
from tests.cli.rollback_tables import split, table

from tidewheel.cli.demo.judging import Judged, follow_rollout, in_words
from tidewheel.cli.demo.launching import Picture, pod_state
from tidewheel.cli.demo.traffic import Served, binomial_band, observed
from tidewheel.cli.errors import CliError

Wire = dict[str, Any]


def pod(state: Wire | None = None, *, ready: str = "False", scheduled: str = "True", **container: Any) -> Wire:
    return {
        "metadata": {"name": "chat-v1-0-0"},
        "spec": {"nodeName": "demo-1"},
        "status": {
            "conditions": [{"type": "PodScheduled", "status": scheduled}, {"type": "Ready", "status": ready}],
            "containerStatuses": [{"state": state or {}, **container}],
        },
    }


ENDED = {"terminated": {"exitCode": 3, "message": "Traceback\n  line\nmodel file /x does not exist\n"}}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        pytest.param(pod(scheduled="False"), "created", id="no node yet"),
        pytest.param(
            pod({"waiting": {"reason": "ContainerCreating"}}),
            "scheduled on demo-1, its container is being made",
            id="scheduled",
        ),
        pytest.param(
            pod({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}),
            "scheduled on demo-1, ErrImagePull: no such image",
            id="no image",
        ),
        pytest.param(pod({"running": {}}), "running, loading the weights", id="loading"),
        pytest.param(pod({"running": {}}, ready="True"), "ready, it has generated a token", id="ready"),
        pytest.param(pod(ENDED), "ended: model file /x does not exist", id="ended, in its last words"),
        pytest.param(
            pod({"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ENDED),
            "ended: model file /x does not exist",
            id="between two tries",
        ),
    ],
)
def test_a_pod_in_words(seen: Wire, words: str) -> None:
    assert pod_state(seen) == words


def rule(status: str, *, observed_generation: int = 2) -> Wire:
    ready = {"type": "Ready", "status": status, "message": "waits", "observedGeneration": observed_generation}
    return {"kind": "RoutingRule", "metadata": {"name": "chat", "generation": 2}, "status": {"conditions": [ready]}}


@pytest.mark.parametrize(
    ("of", "answer"),
    [
        pytest.param(Picture([], [], rule("True"), table(split(v1=9000, v2=1000))), True, id="in force"),
        pytest.param(Picture([], [], rule("True"), table(split(v1=10_000))), False, id="the split before"),
        pytest.param(Picture([], [], rule("False"), table(split(v1=9000, v2=1000))), False, id="not ready"),
        pytest.param(
            Picture([], [], rule("True", observed_generation=1), table(split(v1=9000, v2=1000))),
            False,
            id="ready for an older rule",
        ),
        pytest.param(Picture([], [], rule("True"), None), False, id="no table"),
    ],
)
def test_a_split_is_in_force_when_table_and_rule_say_so(of: Picture, answer: bool) -> None:
    assert of.has_split({"v1": 90, "v2": 10}) is answer


def test_failures_are_not_counted_as_answers() -> None:
    assert observed([Served(0.0, "v1"), Served(0.0, "v1", "cut"), Served(0.0, "v2")]) == {"v1": 1, "v2": 1}


@pytest.mark.parametrize(
    ("count", "share", "band"), [(200, 0.1, (6, 34)), (10_000, 0.1, (901, 1099)), (200, 0.0, (0, 0)), (9, 1.0, (9, 9))]
)
def test_band_of_chance(count: int, share: float, band: tuple[int, int]) -> None:
    assert binomial_band(count, share) == band


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        pytest.param({}, "rollout: not begun", id="none yet"),
        pytest.param(
            {"progress": "1/3", "phase": "WaitingForCapacity"}, "rollout: step 1/3, WaitingForCapacity", id="unjudged"
        ),
        pytest.param(
            {"progress": "1/3", "phase": "Baking", "verdict": "THIN", "bakedSeconds": 3.5},
            "rollout: step 1/3, Baking, the judge says THIN",
            id="judged",
        ),
        pytest.param(
            {"progress": "Rejected", "outcome": "Rejected", "verdict": "BREACH"}, "rollout: Rejected", id="over"
        ),
    ],
)
def test_a_rollout_in_words_without_what_moves_all_the_time(progress: Wire, words: str) -> None:
    assert in_words(progress) == words


class Rules:
    """Answers with one state of the rule after the other; the last one stays."""

    def __init__(self, *progress: Wire) -> None:
        self._left = [*progress]

    async def get(self, resource: object, name: str, namespace: str) -> Wire:
        found = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return {"metadata": {"namespace": namespace, "name": name}, "status": {"rollout": found}}


async def followed(rules: Any, *, say: Any = print, start_seconds: float = 60, judge_seconds: float = 60) -> Judged:
    return await follow_rollout(
        rules,
        namespace="shop",
        model="chat",
        canary="v3",
        say=say,
        start_seconds=start_seconds,
        judge_seconds=judge_seconds,
    )


async def test_a_judge_that_sees_nothing_ends_the_wait_with_what_it_says() -> None:
    blind = {"canary": "v3", "phase": "Baking", "firstWeightAt": "2026-01-01T00:00:00Z", "message": "cannot judge"}
    judged = await followed(Rules(blind), judge_seconds=0)
    assert (judged.outcome, judged.sentence) == ("", "cannot judge")


async def test_a_version_that_gets_no_share_is_an_error_that_says_what_it_waits_for() -> None:
    waiting = {"canary": "v3", "phase": "WaitingForCapacity", "message": "waits for 1 replica(s) of v3"}
    with pytest.raises(CliError, match=r"waits for 1 replica"):
        await followed(Rules(waiting), start_seconds=0)


async def test_the_rollout_is_followed_from_its_first_share_to_the_judges_sentence() -> None:
    old = {"canary": "v2", "progress": "Promoted", "outcome": "Promoted"}
    waiting = {"canary": "v3", "progress": "1/3", "phase": "WaitingForCapacity"}
    baking = {"canary": "v3", "progress": "1/3", "phase": "Baking", "firstWeightAt": "2026-01-01T00:00:00Z"}
    rejected = {**baking, "outcome": "Rejected", "message": "v3 rolled back: too slow"}
    lines: list[str] = []
    judged = await followed(Rules(old, waiting, baking, rejected), say=lines.append)
    assert (judged.outcome, judged.sentence) == ("Rejected", "v3 rolled back: too slow")
    assert judged.seconds > 0
    assert [line.partition("s  ")[2] for line in lines] == [
        "rollout: not begun",
        "rollout: step 1/3, WaitingForCapacity",
        "rollout: step 1/3, Baking",
        "rollout: Rejected",
    ]
