"""Sampling: exact where it can be, statistical where it must be, and independent of the batch always."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from tests.engine.builders import EOS, make_request
from torch import Tensor

from tidewheel.engine.kernels.reference import ReferenceKernels
from tidewheel.engine.request import Request, SamplingParams
from tidewheel.engine.sampler import Sampler, uniform_number
from tidewheel.engine.scheduler import Sampled

SAMPLER = Sampler(ReferenceKernels().argmax)


def request(*, output: list[int] | None = None, prompt: list[int] | None = None, **sampling: object) -> Request:
    made = make_request(prompt or [5, 6], sampling=SamplingParams(**sampling))  # type: ignore[arg-type]
    made.token_ids += output or []
    return made


def random_logits(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


def sample_one(logits: Tensor, **sampling: object) -> int:
    (answer,) = SAMPLER.sample(logits[None].clone(), [request(**sampling)])
    assert answer.token_id is not None
    return answer.token_id


def draws(logits: Tensor, count: int, **sampling: object) -> Counter[int]:
    return Counter(sample_one(logits, seed=seed, **sampling) for seed in range(count))


def test_temperature_zero_is_the_largest_logit() -> None:
    logits = random_logits(4, 50)
    answers = SAMPLER.sample(logits, [request(temperature=0.0) for _ in range(4)])
    assert [a.token_id for a in answers] == logits.argmax(-1).tolist()


@pytest.mark.parametrize("batch", [1, 8])
def test_exact_ties_go_to_the_lowest_id(batch: int) -> None:
    logits = torch.zeros(batch, 40)
    logits[:, [7, 9]] = 1.0
    assert [a.token_id for a in SAMPLER.sample(logits, [request(temperature=0.0)] * batch)] == [7] * batch


def test_top_k_one_equals_temperature_zero() -> None:
    """vllm#5404."""
    logits = torch.zeros(30)
    logits[[3, 8]] = 2.0
    for seed in range(20):
        assert sample_one(logits, temperature=1.0, top_k=1, seed=seed) == 3


def test_values_tied_only_after_softmax_are_told_apart() -> None:
    """vllm#13312."""
    logits = torch.full((20,), -1e4)
    logits[4], logits[2] = 1e-6, 0.0
    assert sample_one(logits, temperature=0.0) == 4


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    counts = draws(logits, 2000, temperature=1.0)
    for token_id, share in enumerate((0.5, 0.3, 0.2)):
        assert counts[token_id] == pytest.approx(2000 * share, abs=4 * math.sqrt(2000 * share * (1 - share)))


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.75}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.5}, {0, 1}),
        ({"top_k": 10_000_000}, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.8}, {0, 1}),
    ],
    ids=str,
)
def test_only_the_tokens_that_the_filters_keep_are_drawn(sampling: dict[str, float], kept: set[int]) -> None:
    """sendnn#542 for the huge top_k; top-p counts what top-k left: 0.5 / 0.9 + 0.25 / 0.9 >= 0.8."""
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    assert set(draws(logits, 400, temperature=1.0, **sampling)) == kept


def test_a_flat_row_needs_more_than_the_candidates() -> None:
    """A nucleus wider than the first 256 tokens is found all the same."""
    counts = draws(torch.arange(1000) * -1e-4, 600, temperature=1.0, top_p=0.9)
    assert max(counts) >= 500
    assert max(counts) < 905


def test_a_request_draws_the_same_alone_and_in_any_batch() -> None:
    """nano-vllm#249."""
    logits = random_logits(6, 300)
    requests = [
        request(temperature=0.0),
        request(temperature=0.7, seed=1),
        request(temperature=1.3, seed=2, top_p=0.9),
        request(temperature=1.0, seed=3, top_k=20),
        request(temperature=0.0, frequency_penalty=1.0, output=[4, 4, 7]),
        request(temperature=0.9, seed=5, min_p=0.1),
    ]
    together = SAMPLER.sample(logits.clone(), requests)
    alone = [SAMPLER.sample(logits[i : i + 1].clone(), [r])[0] for i, r in enumerate(requests)]
    assert together == alone


def test_the_same_seed_at_another_position_draws_anew() -> None:
    logits = torch.zeros(1, 1000)
    first = SAMPLER.sample(logits, [request(temperature=1.0, seed=9)])
    second = SAMPLER.sample(logits, [request(temperature=1.0, seed=9, output=[1])])
    assert first != second


@pytest.mark.parametrize("bad_rows", [[0], [1], [3], [0, 1, 2, 3]], ids=["first", "middle", "last", "all"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_a_number_fails_alone(bad_rows: list[int], temperature: float) -> None:
    """colibri#369."""
    logits = random_logits(4, 100)
    requests = [request(temperature=temperature, seed=i) for i in range(4)]
    solo: list[Sampled] = [SAMPLER.sample(logits[i : i + 1].clone(), [r])[0] for i, r in enumerate(requests)]
    logits[bad_rows, 50] = math.nan
    for row, answer in enumerate(SAMPLER.sample(logits, requests)):
        if row in bad_rows:
            assert answer.token_id is None
            assert answer.error is not None
        else:
            assert answer == solo[row]


def test_penalties_look_at_the_right_tokens() -> None:
    logits = torch.zeros(20)
    logits[[5, 9]] = 1.0
    # Repetition sees the prompt ([5, 6]), frequency and presence only the output.
    assert sample_one(logits, temperature=0.0, repetition_penalty=2.0) == 9
    assert sample_one(logits, temperature=0.0, presence_penalty=2.0) == 5
    (answer,) = SAMPLER.sample(logits[None].clone(), [request(temperature=0.0, presence_penalty=2.0, output=[5])])
    assert answer.token_id == 9


def test_the_frequency_penalty_counts() -> None:
    logits = torch.zeros(20)
    logits[3], logits[4] = 1.0, 0.5
    once = request(temperature=0.0, frequency_penalty=0.4, output=[3])
    twice = request(temperature=0.0, frequency_penalty=0.4, output=[3, 3])
    answers = SAMPLER.sample(torch.stack([logits, logits]), [once, twice])
    assert [a.token_id for a in answers] == [3, 4]


def test_a_repetition_penalty_lowers_negative_logits_too() -> None:
    logits = torch.full((20,), -5.0)
    logits[5], logits[8] = -1.0, -1.5
    assert sample_one(logits, temperature=0.0, repetition_penalty=2.0) == 8


def test_logit_bias_can_force_and_forbid() -> None:
    logits = random_logits(50)
    best = int(logits.argmax())
    assert sample_one(logits, temperature=0.0, logit_bias=((17, 100.0),)) == 17
    assert sample_one(logits, temperature=0.0, logit_bias=((best, -100.0),)) != best


def test_no_end_before_the_minimum() -> None:
    logits = torch.zeros(20)
    logits[EOS], logits[7] = 5.0, 4.0
    assert sample_one(logits, temperature=0.0, min_tokens=1, stop_token_ids=(7,)) not in (EOS, 7)
    (answer,) = SAMPLER.sample(logits[None].clone(), [request(temperature=0.0, min_tokens=1, output=[3])])
    assert answer.token_id == EOS


def test_uniform_numbers_are_uniform_and_depend_on_both() -> None:
    numbers = [uniform_number(seed, position) for seed in range(50) for position in range(200)]
    assert len(set(numbers)) == 10_000
    assert all(0 <= number < 1 for number in numbers)
    counts = Counter(int(number * 10) for number in numbers)
    assert all(abs(count - 1000) < 150 for count in counts.values())
    assert uniform_number(3, 4) == uniform_number(3, 4)


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.full((40,), -math.inf)
    logits[[3, 20]] = 0.0
    for filters in ({}, {"top_p": 0.9999}, {"top_k": 30}):
        assert set(draws(logits, 200, temperature=1.0, **filters)) == {3, 20}


@pytest.mark.parametrize("width", [2048, 3072, 2049, 5000])
def test_a_wide_vocabulary_is_drawn_from_as_a_narrow_one(width: int) -> None:
    """Blocks of 1,024 are an optimisation: a single heavy token at any place, and mass spread over two ends."""
    for place in (0, 1023, 1024, width - 1):
        logits = torch.full((width,), -math.inf)
        logits[place] = 1.0
        assert set(draws(logits, 10, temperature=1.0)) == {place}
    logits = torch.full((width,), -math.inf)
    logits[[3, width - 2]] = torch.tensor([math.log(3.0), 0.0])
    counts = draws(logits, 400, temperature=1.0)
    assert counts[3] == pytest.approx(300, abs=40)
    assert counts[3] + counts[width - 2] == 400


def test_logprobs_are_the_model_s_own() -> None:
    """Before bias, penalties and temperature; the drawn token's own beside the best."""
    logits = random_logits(1, 30)
    expected = logits[0].log_softmax(0)
    asked = request(
        temperature=0.7, seed=4, num_logprobs=3, logit_bias=((17, 50.0),), frequency_penalty=1.0, output=[3]
    )
    (answer,) = SAMPLER.sample(logits.clone(), [asked])
    assert answer.token_id == 17
    assert answer.logprobs is not None
    assert answer.logprobs.own == pytest.approx(float(expected[17]), abs=1e-5)
    best = expected.topk(3)
    assert [i for i, _ in answer.logprobs.top] == best.indices.tolist()
    assert [v for _, v in answer.logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_an_impossible_token_has_a_finite_logprob() -> None:
    logits = torch.full((1, 5), -math.inf)
    logits[0, 2] = 0.0
    (answer,) = SAMPLER.sample(logits, [request(temperature=0.0, num_logprobs=5)])
    assert answer.logprobs is not None
    assert [value for _, value in answer.logprobs.top] == [0.0] + [-9999.0] * 4


@pytest.mark.parametrize("seed", [-1, 0, (1 << 63) - 1, -(1 << 63)])
def test_any_64_bit_seed_is_fine(seed: int) -> None:
    assert 0 <= sample_one(random_logits(10), temperature=1.0, seed=seed) < 10
