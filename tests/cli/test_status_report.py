"""What `tidewheel status` says of objects in every state."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.cli.rollback_tables import rejection, split
from tests.cli.rollback_tables import table as routing_table

from tidewheel.cli.status.report import ModelReport, Mood, age, report

NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
Wire = dict[str, Any]


def condition(kind: str, status: str, message: str = "", *, generation: int = 1) -> Wire:
    return {
        "type": kind,
        "status": status,
        "reason": "Because",
        "message": message or f"{kind} is {status}",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": generation,
    }


def version(name: str, *conditions: Wire, ready: int = 1, desired: int = 1, **metadata: Any) -> Wire:
    return {
        "metadata": {
            "namespace": "default",
            "name": f"chat-{name}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **metadata,
        },
        "spec": {"model": "chat", "version": name},
        "status": {
            "phase": "Stable",
            "readyReplicas": ready,
            "desiredReplicas": desired,
            "conditions": list(conditions),
        },
    }


def rule(*conditions: Wire, **percent: int) -> Wire:
    return {
        "metadata": {"namespace": "default", "name": "chat", "generation": 1},
        "spec": {"model": "chat", "traffic": [{"version": v, "percent": p} for v, p in percent.items()]},
        "status": {"conditions": list(conditions)},
    }


READY = condition("Ready", "True")
CAUSE = {"actor": "ada", "reason": "Rollback", "message": "rolled back: slow", "at": "2026-01-01T00:58:00Z"}


def look(
    versions: list[Wire] | None = None, rules: list[Wire] | None = None, tables: list[Wire] | None = None
) -> ModelReport:
    (only,) = report(versions=versions or [], rules=rules or [], tables=tables or [], now=NOW)
    return only


def test_the_version_with_the_most_traffic_comes_first() -> None:
    seen = look(
        [version("v1", READY), version("v2", READY)],
        [rule(READY, v1=10, v2=90)],
        [routing_table(split(v1=1000, v2=9000), cause=CAUSE)],
    )
    assert [(line.version, line.share, line.wanted) for line in seen.versions] == [
        ("v2", "90%", "90%"),
        ("v1", "10%", "10%"),
    ]


@pytest.mark.parametrize(
    ("conditions", "mood", "words"),
    [
        pytest.param([READY], Mood.GOOD, "", id="all is well"),
        pytest.param(
            [condition("Ready", "False"), condition("Reconciling", "True", "waits for 1 replica")],
            Mood.WAITING,
            "waits for 1 replica",
            id="on its way",
        ),
        pytest.param(
            [condition("Ready", "False"), condition("Degraded", "True", "the image does not exist")],
            Mood.BAD,
            "the image does not exist",
            id="degraded",
        ),
        pytest.param([condition("Accepted", "False", "no such claim")], Mood.BAD, "no such claim", id="refused"),
        pytest.param([], Mood.WAITING, "the operator has not looked at it yet", id="no operator"),
    ],
)
def test_the_worst_news_is_told_in_the_operators_words(conditions: list[Wire], mood: Mood, words: str) -> None:
    (line,) = look([version("v1", *conditions)]).versions
    assert (line.mood, line.message) == (mood, words)


def test_a_version_that_is_being_deleted_says_what_it_waits_for() -> None:
    (line,) = look([version("v1", READY, deletionTimestamp="2026-01-01T00:30:00Z")]).versions
    assert line.mood is Mood.WAITING
    assert "being deleted" in line.message


def test_the_split_names_its_author_and_the_rejected() -> None:
    notes = look([], [rule(READY, v1=100)], [routing_table(split(v1=10_000), cause=CAUSE, rejected=[rejection("v2")])])
    text = "\n".join(notes.notes)
    assert "this split: rolled back: slow (ada, 2m ago)" in text
    assert "v2 is rejected: slow" in text
    assert "there is no ModelVersion chat-v1" in text


def test_a_model_without_a_rule_says_that_nothing_is_routed() -> None:
    assert look([version("v1", READY)]).notes == ["no RoutingRule: nothing is routed to it"]


def test_a_table_whose_rule_is_gone_says_so() -> None:
    notes = look([version("v1", READY)], [], [routing_table(split(v1=10_000), cause=CAUSE)]).notes
    assert any("the RoutingRule is gone" in note for note in notes)


def test_only_the_model_asked_for() -> None:
    assert report(versions=[version("v1")], rules=[], tables=[], now=NOW, model="other") == []


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("2026-01-01T00:59:01Z", "59s"),
        ("2026-01-01T00:40:00Z", "20m"),
        ("2025-12-31T20:00:00Z", "5h"),
        ("2025-12-20T01:00:00Z", "12d"),
        ("2026-01-01T01:00:09Z", "0s"),
    ],
)
def test_age_in_one_unit(then: str, words: str) -> None:
    assert age(then, now=NOW) == words
