"""Faults of the simulated runner that are a matter of time, told by what it sleeps."""

from __future__ import annotations

import pytest
from tests.engine.builders import make_engine, make_request, make_scheduler

from tidewheel.engine.faults import Faults
from tidewheel.engine.simulated import SimulatedRunner, StepTime

STEP = 0.01


def slept(fault: str, *, tokens: int) -> list[float]:
    """Seconds of every pause while one reply of so many tokens is made."""
    pauses: list[float] = []
    runner = SimulatedRunner(
        num_blocks=64,
        max_model_len=1000,
        step_time=StepTime(1000 * STEP, 0, 0),
        faults=Faults.parse([fault]),
        reply_tokens=1000,
        sleep=pauses.append,
    )
    engine = make_engine(make_scheduler(num_blocks=64), runner)
    engine.submit(make_request([5, 6, 7], max_tokens=tokens, deliver=lambda output: None))
    while engine.has_work:
        engine.step()
    return pauses


def test_a_stall_comes_once_in_so_many_tokens() -> None:
    pauses = slept("stall:4", tokens=10)
    assert [pause for pause in pauses if pause > 1] == [3.0, 3.0]
    assert sum(pause == pytest.approx(STEP) for pause in pauses) == 10


def test_a_slow_leak_makes_every_step_slower_than_the_one_before() -> None:
    pauses = slept("slower:5", tokens=11)
    assert pauses == sorted(set(pauses))
    assert pauses[0] == pytest.approx(STEP)
    assert pauses[5] == pytest.approx(2 * STEP)
    assert pauses[10] == pytest.approx(3 * STEP)
