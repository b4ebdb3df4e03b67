"""The limit follows the measured step time."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
from tests.engine.builders import (
    AnyTokenRunner,
    Clock,
    make_engine,
    make_request,
    make_scheduler,
    run_until_idle,
)

from tidewheel.engine.limits import ConcurrencyLimit, PrefillLimit, StepLoad, StepTimeFit, StepTimeModel
from tidewheel.engine.scheduler import Step

TRUTH = StepTimeFit(
    base=0.005, per_prefill_token=0.0007, per_decode=0.001, per_context_token=2e-6, per_prefill_pair=3e-8
)
TERMS = [field.name for field in fields(StepTimeFit)]


def observed(truth: StepTimeFit, steps: int, *, noise: float = 0.0) -> StepTimeModel:
    rng = random.Random(3)
    model = StepTimeModel()
    for _ in range(steps):
        decodes = rng.randint(0, 40)
        tokens = rng.choice([0, 0, 256, 100])
        pairs = tokens * rng.randint(0, 9000) + tokens * (tokens + 1) // 2
        load = StepLoad(tokens, decodes, decodes * rng.randint(50, 600), pairs)
        model.observe(load, truth.seconds(load) * (1 + noise * rng.uniform(-1, 1)))
    return model


def test_the_fit_recovers_what_made_the_steps() -> None:
    fit = observed(TRUTH, 400).fit()
    assert fit is not None
    for name in TERMS:
        assert getattr(fit, name) == pytest.approx(getattr(TRUTH, name), rel=0.02)


def test_noise_of_a_fifth_moves_predictions_by_little() -> None:
    fit = observed(TRUTH, 2000, noise=0.2).fit()
    assert fit is not None
    load = StepLoad(128, 20, 6000)
    assert fit.seconds(load) == pytest.approx(TRUTH.seconds(load), rel=0.05)


def test_it_follows_a_machine_that_slowed_down() -> None:
    model = observed(TRUTH, 500)
    slow = StepTimeFit(*(2 * getattr(TRUTH, name) for name in TERMS))
    rng = random.Random(4)
    for _ in range(4000):
        decodes = rng.randint(0, 40)
        load = StepLoad(rng.choice([0, 256]), decodes, decodes * 300)
        model.observe(load, slow.seconds(load))
    fit = model.fit()
    assert fit is not None
    load = StepLoad(0, 32, 9600)
    assert fit.seconds(load) == pytest.approx(slow.seconds(load), rel=0.05)


def test_nothing_is_claimed_before_enough_steps() -> None:
    assert observed(TRUTH, 49).fit() is None
    assert observed(TRUTH, 50).fit() is not None


def test_no_term_is_ever_negative() -> None:
    model = StepTimeModel()
    for count in range(200):
        model.observe(StepLoad(0, count % 20, 0), 0.05 - 0.001 * (count % 20))
    fit = model.fit()
    assert fit is not None
    assert min(getattr(fit, name) for name in TERMS) >= 0


def test_the_limit_moves_to_what_the_target_allows_and_back() -> None:
    limit = ConcurrencyLimit(ceiling=256, seconds_per_token=0.025)
    for second in range(60):
        limit.update(TRUTH, mean_context=250, now=float(second))
    assert limit.value == TRUTH.max_decodes(seconds=0.025, mean_context=250) == 13
    fast = StepTimeFit(0.001, 0.0, 0.0001, 0.0)
    for second in range(60, 160):
        limit.update(fast, mean_context=250, now=float(second))
    assert limit.value == 240


def test_the_limit_stays_at_least_one_and_moves_once_a_second() -> None:
    limit = ConcurrencyLimit(ceiling=100, seconds_per_token=1e-9)
    limit.update(TRUTH, mean_context=0, now=0.0)
    limit.update(TRUTH, mean_context=0, now=0.5)
    assert limit.value == 90
    for second in range(1, 100):
        limit.update(TRUTH, mean_context=0, now=float(second))
    assert limit.value == 1


def test_without_a_target_the_ceiling_holds() -> None:
    limit = ConcurrencyLimit(ceiling=100, seconds_per_token=None)
    limit.update(TRUTH, mean_context=0, now=0.0)
    assert limit.value == 100


def test_an_engine_with_a_target_runs_fewer_at_once() -> None:
    """Steps of 10 ms per request and a target of 45 ms: four at once, however many wait."""
    clock = Clock()

    def tick(step: Step) -> None:
        clock.now += 0.010 * len(step.work)

    scheduler = make_scheduler(num_blocks=4000, block_size=4, max_num_seqs=16, budget=512, seconds_per_token=0.045)
    engine = make_engine(scheduler, AnyTokenRunner(before_step=tick), clock=clock)
    for _ in range(60):
        engine.submit(make_request(4, max_tokens=60))
    run_until_idle(engine, max_steps=20_000)
    assert scheduler.limit.value == 4


@pytest.mark.parametrize("start", [0, 300, 100_000])
def test_a_chunk_takes_the_time_that_is_left(start: int) -> None:
    limit = PrefillLimit(seconds_per_token=0.2)
    limit.update(TRUTH)
    decodes = StepLoad(0, 20, 6000)
    chunk = int(limit.most(decodes, start=start))
    pairs = [n * start + n * (n + 1) // 2 for n in (chunk - 1, chunk + 1)]
    assert TRUTH.seconds(decodes._replace(num_prefill_tokens=chunk - 1, num_prefill_pairs=pairs[0])) < 0.2
    assert TRUTH.seconds(decodes._replace(num_prefill_tokens=chunk + 1, num_prefill_pairs=pairs[1])) > 0.2


def test_a_fit_without_a_prefill_cost_and_an_engine_without_decodes_leave_chunks_alone() -> None:
    limit = PrefillLimit(seconds_per_token=0.2)
    assert limit.most(StepLoad(0, 20, 6000), start=0) == float("inf")
    limit.update(TRUTH)
    assert limit.most(StepLoad(0, 0, 0), start=0) == float("inf")
    limit.update(StepTimeFit(0.001, 0.0, 0.0, 0.0))
    assert limit.most(StepLoad(0, 20, 6000), start=0) == float("inf")


def test_prompts_get_on_though_decodes_alone_exceed_the_target() -> None:
    limit = PrefillLimit(seconds_per_token=0.001)
    limit.update(TRUTH)
    assert limit.most(StepLoad(0, 20, 6000), start=0) == 16
    assert limit.most(StepLoad(16, 20, 6000), start=0) == 0


def test_a_long_prompt_beside_decodes_keeps_their_steps_below_the_target() -> None:
    """A pair costs, so chunks must shrink as the prompt gets longer; it still ends."""
    clock = Clock()
    late: list[float] = []

    def tick(step: Step) -> None:
        seconds = TRUTH.seconds(step.load())
        clock.now += seconds
        if step.load().num_decodes:
            late.append(seconds)

    scheduler = make_scheduler(
        num_blocks=4000, block_size=16, max_num_seqs=16, budget=2048, seconds_per_token=0.1, max_model_len=30_000
    )
    engine = make_engine(scheduler, AnyTokenRunner(before_step=tick), clock=clock)
    for _ in range(8):
        engine.submit(make_request(4, max_tokens=2000))
    for _ in range(60):
        engine.step()
    # A prompt first from which the engine learns what chunks cost.
    engine.submit(make_request(1000, max_tokens=4))
    for _ in range(60):
        engine.step()
    late.clear()
    long = make_request(20_000, max_tokens=4)
    engine.submit(long)
    while not long.num_output:
        engine.step()
    assert sorted(late)[int(0.99 * len(late))] < 0.1 * 1.2
