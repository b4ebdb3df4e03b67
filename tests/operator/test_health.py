"""/healthz is red only when starting this process again could help."""

import pytest

from tidewheel.clients.resources import PODS
from tidewheel.operator.serving.vitals import Vitals, health_trouble


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def vitals(clock: Clock) -> Vitals:
    return Vitals(clock)


def trouble(vitals: Vitals, *, queue_age: float = 0.0) -> str:
    return health_trouble(vitals, watch_old_seconds=90, queue_age_seconds=queue_age, queue_stuck_seconds=120)


def test_a_stand_by_that_watches_nothing_is_healthy(vitals: Vitals, clock: Clock) -> None:
    clock.now += 10_000
    vitals.watch_alive(PODS)
    assert trouble(vitals) == ""


def test_one_old_watch_is_named_while_the_api_server_answers(vitals: Vitals, clock: Clock) -> None:
    vitals.watching_begins()
    clock.now += 91
    vitals.watch_alive(PODS)
    vitals.answered()
    found = trouble(vitals)
    assert "modelversions 91 s" in found
    assert "pods" not in found


def test_an_api_server_that_is_away_is_no_reason_to_start_again(vitals: Vitals, clock: Clock) -> None:
    vitals.watching_begins()
    vitals.answered()
    clock.now += 3600
    assert trouble(vitals, queue_age=3600) == ""


def test_a_stuck_queue_is_red(vitals: Vitals) -> None:
    vitals.answered()
    assert "stuck" in trouble(vitals, queue_age=121)
    assert trouble(vitals, queue_age=119) == ""


def test_the_end_of_a_term_ends_its_watches(vitals: Vitals, clock: Clock) -> None:
    vitals.watching_begins()
    vitals.watching_ends()
    clock.now += 3600
    vitals.answered()
    assert trouble(vitals) == ""


def test_the_length_of_a_silence_is_told_by_the_answer_that_ends_it(vitals: Vitals, clock: Clock) -> None:
    assert vitals.answered() == 0
    clock.now += 42
    assert vitals.answered() == 42
