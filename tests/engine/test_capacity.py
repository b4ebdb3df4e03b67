"""What can never fit is refused; what cannot grow fails alone; the engine goes on."""

from __future__ import annotations

import pytest
from tests.engine.builders import (
    ScriptedRunner,
    make_engine,
    make_request,
    make_scheduler,
    output_of,
    run_until_idle,
    uninterrupted,
)

from tidewheel.engine.errors import ContextLengthError, InvalidRequestError
from tidewheel.engine.request import FinishReason
from tidewheel.engine.scheduler import Limits


def test_a_prompt_larger_than_the_pool_is_refused_and_the_next_one_runs() -> None:
    """vllm#39734, vllm#35541: it hung."""
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    with pytest.raises(ContextLengthError, match=r"^This model's maximum context length is 16 tokens\."):
        scheduler.fit(num_prompt=20, max_tokens=None, param="prompt")
    engine = make_engine(scheduler)
    request = make_request(4, max_tokens=3)
    engine.submit(request)
    run_until_idle(engine)
    assert request.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "allowed"),
    [(15, None, 1), (15, 1, 1), (1, None, 15), (1, 15, 15)],
    ids=["one token left", "one asked", "all that is left", "all asked"],
)
def test_requests_up_to_the_limit_are_taken(num_prompt: int, max_tokens: int | None, allowed: int) -> None:
    """vllm#16445: a prompt of one less than the limit gets one token."""
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    assert scheduler.fit(num_prompt=num_prompt, max_tokens=max_tokens, param="prompt") == allowed


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(16, None), (17, None), (15, 2), (1, 16)])
def test_requests_over_the_limit_are_refused(num_prompt: int, max_tokens: int | None) -> None:
    """vllm#23683."""
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    with pytest.raises(ContextLengthError) as caught:
        scheduler.fit(num_prompt=num_prompt, max_tokens=max_tokens, param="messages")
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"


def test_an_empty_prompt_is_refused() -> None:
    """vllm#7283, vllm#7632."""
    with pytest.raises(InvalidRequestError):
        make_scheduler().fit(num_prompt=0, max_tokens=1, param="prompt")


def test_the_advertised_length_is_the_least_of_model_setting_and_pool() -> None:
    """vllm#2163."""
    assert make_scheduler(num_blocks=4, block_size=4, max_model_len=1000).max_model_len == 16
    assert make_scheduler(num_blocks=400, block_size=4, max_model_len=1000).max_model_len == 1000


@pytest.mark.parametrize("length", [0, -1])
def test_a_senseless_limit_is_refused_at_start(length: int) -> None:
    """vllm#43532."""
    with pytest.raises(ValueError, match="max_model_len"):
        Limits(max_model_len=length)


def test_a_request_that_outgrows_the_pool_alone_ends_with_what_it_has() -> None:
    """nano-vllm#274, nano-vllm#277: it died on an assertion."""
    scheduler = make_scheduler(num_blocks=2, block_size=4)
    engine = make_engine(scheduler)
    # Past `fit`, as if its promise had been broken.
    request = make_request(7, max_tokens=64)
    engine.submit(request)
    assert run_until_idle(engine) < 10
    assert request.finish_reason is FinishReason.LENGTH
    assert output_of(request) == uninterrupted(request.token_ids[:7], 2)
    assert scheduler.pool.num_free == 2


def test_when_the_pool_is_too_small_for_all_the_oldest_ends_and_the_rest_follow() -> None:
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    engine = make_engine(scheduler)
    requests = [make_request(4, max_tokens=12) for _ in range(4)]
    for request in requests:
        engine.submit(request)
    run_until_idle(engine)
    for request in requests:
        assert output_of(request) == uninterrupted(request.token_ids[:4], 12)
    assert scheduler.pool.num_free == 5


def test_free_blocks_return_to_the_start_after_many_chunks() -> None:
    """sglang#6888."""
    scheduler = make_scheduler(num_blocks=60, block_size=4, budget=4)
    engine = make_engine(scheduler)
    engine.submit(make_request(5, max_tokens=200))
    run_until_idle(engine)
    assert scheduler.pool.num_free == 60


def test_the_budget_is_never_exceeded_and_decodes_come_first() -> None:
    budgets: list[int] = []
    decoding_first: list[bool] = []

    def look(step):  # type: ignore[no-untyped-def]
        budgets.append(step.num_tokens)
        lengths = [item.num_tokens for item in step.work.values()]
        decoding_first.append(lengths == sorted(lengths, key=lambda n: n > 1))

    engine = make_engine(make_scheduler(num_blocks=64, budget=6), ScriptedRunner(before_step=look))
    engine.submit(make_request(3, max_tokens=20))
    engine.submit(make_request(40, max_tokens=4))
    run_until_idle(engine)
    assert max(budgets) <= 6
    assert all(decoding_first)


def test_a_long_prompt_does_not_stop_those_that_decode() -> None:
    tokens_per_step: list[int] = []
    scheduler = make_scheduler(num_blocks=200, budget=8)
    engine = make_engine(scheduler)
    decoding = make_request(4, max_tokens=60)
    engine.submit(decoding)
    engine.step()
    engine.submit(make_request(300, max_tokens=2))
    for _ in range(30):
        before = decoding.num_output
        engine.step()
        tokens_per_step.append(decoding.num_output - before)
    assert tokens_per_step == [1] * 30
