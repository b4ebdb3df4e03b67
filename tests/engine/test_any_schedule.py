"""Float32 greedy tokens equal transformers', however the engine came to them.

Each seed draws prompts (some share a beginning) and a schedule: alone or batched, chunks of 1 to 64, with or without
the prefix cache, in pools that force preemption, and with preemptions at random moments.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.builders import make_engine, make_request, make_scheduler, output_of
from tests.engine.model_families import FAMILIES, VOCAB, make_runner, save_folder

from tidewheel.engine.artifact import resolve_model
from tidewheel.engine.engine import Engine
from tidewheel.engine.model.checkpoint import Checkpoint, load_checkpoint
from tidewheel.engine.request import Request
from tidewheel.engine.scheduler import Step

PROMPTS_A_SEED = 8
NUM_TOKENS = 10
MOST_PREEMPTIONS = 8
NAMES = ("llama 3", "qwen 2", "qwen 3")


@dataclass(frozen=True)
class Schedule:
    batch: int
    budget: int
    max_chunk: int
    caches_prefixes: bool
    num_blocks: int
    preempt_share: float

    @classmethod
    def draw(cls, rng: random.Random, *, longest: int, block_size: int) -> Schedule:
        least = -(-(longest + NUM_TOKENS) // block_size) + 1
        return cls(
            batch=rng.choice([1, 3, PROMPTS_A_SEED]),
            budget=rng.choice([1, 7, 64, 512]),
            max_chunk=rng.randint(1, 64),
            caches_prefixes=rng.random() < 0.5,
            num_blocks=rng.choice([least, 2 * least, 40 * least]),
            preempt_share=rng.choice([0.0, 0.1, 0.3]),
        )


def draw_prompts(rng: random.Random, *, vocab_size: int, longest: int) -> list[list[int]]:
    shared = [rng.randrange(3, vocab_size) for _ in range(longest // 2)]
    prompts = []
    for _ in range(PROMPTS_A_SEED):
        start = shared[: rng.choice([0, 0, len(shared) // 2, len(shared)])]
        rest = rng.randint(1, longest - len(start))
        prompts.append(start + [rng.randrange(3, vocab_size) for _ in range(rest)])
    return prompts


def run(engine: Engine, requests: list[Request], schedule: Schedule, rng: random.Random) -> None:
    waiting = list(requests)
    for _ in range(100_000):
        while waiting and len(engine.scheduler.running) + len(engine.scheduler.waiting) < schedule.batch:
            engine.submit(waiting.pop(0))
        if not engine.has_work:
            break
        # Who is stopped again and again, without a cache and at one token a step, would never come to an end.
        stoppable = [r for r in engine.scheduler.running if r.num_preemptions < MOST_PREEMPTIONS]
        if stoppable and rng.random() < schedule.preempt_share:
            engine.scheduler._preempt(rng.choice(stoppable), Step(budget=0))
        engine.step()
        engine.scheduler.check()
    assert all(request.is_finished for request in requests)
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks


def check_seed(runner_of: Any, twin: Any, *, seed: int, vocab_size: int, longest: int, block_size: int) -> None:
    rng = random.Random(seed)
    schedule = Schedule.draw(rng, longest=longest, block_size=block_size)
    scheduler = make_scheduler(
        num_blocks=schedule.num_blocks, block_size=block_size, budget=schedule.budget, max_chunk=schedule.max_chunk,
        caches_prefixes=schedule.caches_prefixes, max_model_len=longest + NUM_TOKENS,
    )  # fmt: skip
    engine = make_engine(scheduler)
    engine.runner = runner_of(schedule.num_blocks)
    requests = []
    for prompt in draw_prompts(rng, vocab_size=vocab_size, longest=longest):
        request = make_request(prompt, max_tokens=NUM_TOKENS)
        request.eos_ids = frozenset()
        requests.append(request)
    run(engine, requests, schedule, rng)
    for request in requests:
        with torch.inference_mode():
            logits = twin(torch.tensor([request.token_ids[:-1]])).logits[0]
        expected = logits[request.num_prompt - 1 :].argmax(-1).tolist()
        assert output_of(request) == expected, (seed, schedule)


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Any]:
    folder = tmp_path_factory.mktemp("model")
    twin = save_folder(folder, FAMILIES[request.param])
    return load_checkpoint(folder, dtype=torch.float32), twin


def check_family(pair: tuple[Checkpoint, Any], seed: int) -> None:
    checkpoint, twin = pair
    check_seed(
        lambda num_blocks: make_runner(checkpoint, num_blocks=num_blocks),
        twin,
        seed=seed,
        vocab_size=VOCAB,
        longest=100,
        block_size=4,
    )


@pytest.mark.parametrize("seed", range(2))
def test_tokens_equal_transformers_under_a_random_schedule(pair: tuple[Checkpoint, Any], seed: int) -> None:
    check_family(pair, seed)


@pytest.mark.long
def test_tokens_equal_transformers_on_hundreds_of_prompts(pair: tuple[Checkpoint, Any]) -> None:
    """40 seeds of 8 prompts, for each family."""
    for seed in range(100, 140):
        check_family(pair, seed)


@pytest.mark.long
@pytest.mark.component
def test_smollm2_equals_transformers_on_two_hundred_prompts(tmp_path: Path) -> None:
    from tests.engine.test_smollm2 import make_smollm2_runner, make_twin

    path = resolve_model("smollm2", sha256=None, needs_file=True).path
    assert path is not None
    checkpoint = load_checkpoint(path, dtype=torch.float32)
    twin = make_twin(checkpoint)
    runner = make_smollm2_runner(checkpoint)
    for seed in range(25):
        check_seed(
            lambda num_blocks: runner,
            twin,
            seed=seed,
            vocab_size=checkpoint.config.vocab_size,
            longest=64,
            block_size=16,
        )
