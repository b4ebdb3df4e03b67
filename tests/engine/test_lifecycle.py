"""Abort in any state, truthful health, death without silence."""

from __future__ import annotations

import threading

import pytest
from tests.engine.builders import (
    Clock,
    Inbox,
    ScriptedRunner,
    make_engine,
    make_request,
    make_scheduler,
    output_of,
    run_until_idle,
    uninterrupted,
)

from tidewheel.engine.engine import Engine
from tidewheel.engine.errors import EngineDeadError
from tidewheel.engine.request import FinishReason, Output, Request
from tidewheel.engine.scheduler import Step


def received(request: Request) -> list[Output]:
    assert isinstance(request.deliver, Inbox)
    return request.deliver.outputs


def test_a_waiting_request_is_aborted_cleanly() -> None:
    """vllm#18485."""
    engine = make_engine(make_scheduler(num_blocks=2, block_size=4, max_num_seqs=1))
    running, waiting = make_request(4), make_request(4)
    engine.submit(running)
    engine.submit(waiting)
    engine.step()
    engine.abort(waiting)
    engine.step()
    assert len(engine.scheduler.waiting) == 0
    assert received(waiting)[-1].finish_reason is FinishReason.ABORTED
    run_until_idle(engine)
    assert output_of(waiting) == []


def test_a_running_request_frees_its_slot_at_the_next_step() -> None:
    engine = make_engine(make_scheduler(num_blocks=8, block_size=4))
    request, other = make_request(4, max_tokens=20), make_request(4, max_tokens=5)
    engine.submit(request)
    engine.submit(other)
    engine.step()
    engine.abort(request)
    engine.step()
    engine.scheduler.check()
    assert engine.scheduler.running == [other]
    run_until_idle(engine)
    assert output_of(other) == uninterrupted(other.token_ids[:4], 5)


def test_a_preempted_request_can_be_aborted() -> None:
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    engine = make_engine(scheduler)
    requests = [make_request(5, max_tokens=12) for _ in range(3)]
    for request in requests:
        engine.submit(request)
    while not any(r.num_preemptions for r in requests):
        engine.step()
    victim = next(r for r in requests if r.num_preemptions)
    engine.abort(victim)
    run_until_idle(engine)
    assert victim.finish_reason is FinishReason.ABORTED
    assert scheduler.pool.num_free == 5


def test_aborting_twice_or_after_the_end_does_nothing() -> None:
    engine = make_engine(make_scheduler())
    request = make_request(4, max_tokens=2)
    engine.submit(request)
    run_until_idle(engine)
    engine.abort(request)
    engine.abort(request)
    run_until_idle(engine)
    assert request.finish_reason is FinishReason.LENGTH
    assert [o.finish_reason for o in received(request)] == [None, FinishReason.LENGTH]


def test_an_abort_that_overtakes_the_first_step_is_kept() -> None:
    engine = make_engine(make_scheduler())
    request = make_request(4)
    engine.submit(request)
    engine.abort(request)
    run_until_idle(engine)
    assert received(request)[0].finish_reason is FinishReason.ABORTED
    assert output_of(request) == []


def test_a_failed_row_fails_alone() -> None:
    engine = make_engine(make_scheduler())
    good, bad = make_request(4, max_tokens=6), make_request(4, max_tokens=6)
    script = ScriptedRunner()
    runner = ScriptedRunner(choose=lambda r: None if r is bad and r.num_output == 2 else script._answer(r).token_id)
    engine = make_engine(make_scheduler(), runner)
    engine.submit(good)
    engine.submit(bad)
    run_until_idle(engine)
    assert output_of(good) == uninterrupted(good.token_ids[:4], 6)
    assert received(bad)[-1].finish_reason is FinishReason.FAILED
    assert received(bad)[-1].error is not None
    assert len(output_of(bad)) == 2


def test_idle_is_healthy_however_long() -> None:
    """vllm#24897, vllm#36451: and the first step after a long idle time counts from its own start."""
    clock = Clock()
    engine = make_engine(make_scheduler(), clock=clock)
    clock.now = 1000.0
    assert engine.seconds_without_progress() == 0
    engine.submit(make_request(4))
    assert engine.seconds_without_progress() == 0
    clock.now = 1005.0
    assert engine.seconds_without_progress() == 5
    engine.step()
    assert engine.seconds_without_progress() == 0


def test_a_step_that_never_ends_shows() -> None:
    clock = Clock()
    entered, release = threading.Event(), threading.Event()

    def hang(step: Step) -> None:
        entered.set()
        assert release.wait(10)

    engine = make_engine(make_scheduler(), ScriptedRunner(before_step=hang), clock=clock)
    engine.start()
    engine.submit(make_request(4, max_tokens=1))
    assert entered.wait(5)
    clock.now = 91.0
    assert engine.seconds_without_progress() == 91.0
    release.set()
    engine.stop()


def test_a_dying_loop_tells_everyone_and_takes_no_more() -> None:
    ended = threading.Event()

    def explode(step: Step) -> None:
        raise RuntimeError("out of memory")

    def deliver(outputs: list[Output]) -> None:
        for output in outputs:
            output.request.deliver(output)
        if sum(len(received(r)) for r in requests) == len(requests):
            ended.set()

    requests = [make_request(4) for _ in range(3)]
    engine = Engine(
        runner=ScriptedRunner(before_step=explode), scheduler=make_scheduler(max_num_seqs=1), deliver=deliver
    )
    for request in requests:
        engine.submit(request)
    engine.start()
    assert ended.wait(5)
    assert all(received(r)[0].error is not None for r in requests)
    assert isinstance(engine.death, RuntimeError)
    with pytest.raises(EngineDeadError):
        engine.submit(make_request(4))


def test_an_idle_loop_waits_without_spinning() -> None:
    """mlx-lm#1500, vllm#16226."""
    readings = 0

    def counting_clock() -> float:
        nonlocal readings
        readings += 1
        return 0.0

    engine = make_engine(make_scheduler(), clock=counting_clock)
    engine.start()
    done = threading.Event()
    request = make_request(4, max_tokens=1, deliver=lambda output: done.set())
    engine.submit(request)
    assert done.wait(5)
    before = readings
    assert not done.wait(0.05) or readings - before < 10
    engine.stop()


def test_the_smoothed_step_time_follows_the_clock() -> None:
    clock = Clock()

    def tick(step: Step) -> None:
        clock.now += 0.5

    engine = make_engine(make_scheduler(), ScriptedRunner(before_step=tick), clock=clock)
    assert engine.step_time is None
    engine.submit(make_request(4, max_tokens=3))
    run_until_idle(engine)
    assert engine.step_time == pytest.approx(0.5)
