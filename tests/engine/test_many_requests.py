"""Many requests, one after the other and side by side: memory stays flat, and every block comes back."""

from __future__ import annotations

import gc
import itertools
import random
from pathlib import Path

import pytest
import torch
from tests.engine.builders import make_engine, make_request, make_scheduler
from tests.engine.model_families import FAMILIES, make_runner, save_folder

from tidewheel.engine.engine import Engine
from tidewheel.engine.faults import Faults
from tidewheel.engine.model.checkpoint import load_checkpoint
from tidewheel.engine.request import Output
from tidewheel.engine.scheduler import Scheduler
from tidewheel.engine.simulated import SimulatedRunner, StepTime


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def simulated_engine() -> Engine:
    scheduler = make_scheduler(num_blocks=4096, block_size=16, budget=4096, max_num_seqs=256)
    runner = SimulatedRunner(
        num_blocks=4096, max_model_len=1000, step_time=StepTime(0, 0, 0), faults=Faults(), sleep=lambda seconds: None
    )
    return Engine(runner=runner, scheduler=scheduler, deliver=lambda outputs: None)


def swallow(output: Output) -> None:
    """A stream that keeps nothing."""


def pump(engine: Engine, *, count: int, vocab_size: int, max_tokens: int, in_flight: int, check_every: int) -> None:
    """`count` requests, `in_flight` at a time; some are aborted, many share a beginning."""
    rng = random.Random(count)
    scheduler: Scheduler = engine.scheduler
    begun = itertools.count()
    number = next(begun)
    resident_after_a_tenth = 0
    while number < count or engine.has_work:
        while number < count and len(scheduler.running) + len(scheduler.waiting) < in_flight:
            prompt = [rng.randrange(5, vocab_size)] * 16 + [rng.randrange(5, vocab_size) for _ in range(8)]
            request = make_request(
                prompt, max_tokens=rng.randint(1, max_tokens), tenant=f"t{number % 5000}", deliver=swallow
            )
            engine.submit(request)
            if rng.random() < 0.02:
                engine.abort(request)
            number = next(begun)
            if number == count // 10:
                gc.collect()
                resident_after_a_tenth = resident_bytes()
        engine.step()
        if engine.num_steps % check_every == 0:
            scheduler.check()
    scheduler.check()
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    gc.collect()
    grown = resident_bytes() - resident_after_a_tenth
    print(f"\n{count:,} requests: resident memory grew by {grown / 1e6:.1f} MB after the first tenth")
    assert grown < 30e6


def test_two_thousand_requests_leave_nothing_behind() -> None:
    pump(simulated_engine(), count=2000, vocab_size=500, max_tokens=4, in_flight=300, check_every=50)


@pytest.mark.long
def test_a_million_requests_leave_nothing_behind() -> None:
    pump(simulated_engine(), count=1_000_000, vocab_size=500, max_tokens=4, in_flight=300, check_every=5000)


@pytest.mark.long
def test_ten_thousand_requests_of_a_real_model_leave_nothing_behind(tmp_path: Path) -> None:
    family = FAMILIES["smollm"]
    save_folder(tmp_path, family)
    checkpoint = load_checkpoint(tmp_path, dtype=torch.float32)
    scheduler = make_scheduler(num_blocks=300, block_size=16, budget=512, max_num_seqs=64, max_model_len=256)
    engine = make_engine(scheduler)
    engine.runner = make_runner(checkpoint, block_size=16, num_blocks=300)
    pump(engine, count=10_000, vocab_size=290, max_tokens=4, in_flight=80, check_every=100)
