"""Scheduler and blocks under random events: arrive, abort, finish, preempt, cap, drain.

After every event: the books balance, nobody reads another's KV, caps hold, a step with work makes progress. At the end:
every request has its tokens, none waited longer than the bound, every block is back.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from tests.engine.builders import (
    Clock,
    ScriptedRunner,
    make_engine,
    make_request,
    make_scheduler,
    output_of,
    uninterrupted,
)

from tidewheel.engine.lanes import OUTPUT_WEIGHT, PROMPT_WEIGHT
from tidewheel.engine.request import FinishReason, Output, Request
from tidewheel.engine.scheduler import Step

BLOCK = 4
MAX_WAIT = 50.0  # steps: a step takes one second of the clock
MAX_OPEN = 16
SHARED = [7, 8, 9, 10] * 8


@dataclass
class World:
    seed: int
    rng: random.Random = field(init=False)
    clock: Clock = field(default_factory=Clock)
    open: list[Request] = field(default_factory=list)
    finished: int = 0
    aborted: int = 0
    longest_wait: float = 0.0

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.num_blocks = rng.randint(6, 24)
        self.scheduler = make_scheduler(
            num_blocks=self.num_blocks, block_size=BLOCK, budget=rng.choice([1, 3, 8, 64]),
            max_chunk=rng.choice([None, 2, 5]), max_num_seqs=rng.choice([2, 5, 16]), max_wait=MAX_WAIT,
            floor_share=rng.choice([0.0, 0.1]), caches_prefixes=rng.random() < 0.8,
        )  # fmt: skip
        self.engine = make_engine(self.scheduler, ScriptedRunner(), clock=self.clock)
        # Serving everybody who was there before, one after the other, each alone, twice over for what is recomputed.
        most_tokens = self.num_blocks * BLOCK
        self.bound = MAX_WAIT + 2 * MAX_OPEN * (most_tokens + most_tokens)

    def arrive(self) -> None:
        if len(self.open) >= MAX_OPEN:
            return
        rng = self.rng
        most = self.scheduler.max_model_len
        num_prompt = rng.randint(1, most - 1)
        request = make_request(
            SHARED[:num_prompt] if rng.random() < 0.4 and num_prompt <= len(SHARED) else num_prompt,
            max_tokens=rng.randint(1, most - num_prompt),
            lane=rng.choices(["paid", "free", "background"], [6, 3, 1])[0],
            tenant=rng.choice(["", "a", "b", "c"]),
            arrived_at=self.clock.now,
        )
        request.max_tokens = min(request.max_tokens, most - request.num_prompt)
        self.open.append(request)
        self.engine.submit(request)

    def abort(self) -> None:
        if self.open:
            request = self.rng.choice(self.open)
            self.engine.abort(request)
            if self.rng.random() < 0.3:
                self.engine.abort(request)

    def preempt(self) -> None:
        if self.scheduler.running:
            self.scheduler._preempt(self.rng.choice(self.scheduler.running), Step(budget=0))

    def cap(self) -> None:
        """Somebody changes the caps; what runs already may be over the new slots, never over the pool."""
        limits = self.scheduler.limits
        self.scheduler.limits = replace(limits, max_seqs_per_tenant=self.rng.choice([None, 1, 3]))

    def drain(self) -> None:
        """No arrivals until all that is open has ended."""
        steps = 0
        while self.engine.has_work:
            self.step()
            steps += 1
            assert steps < self.bound * 4
        assert self.scheduler.pool.num_free == self.num_blocks

    def step(self) -> None:
        self.clock.now += 1
        computed_before = self.engine.runner.num_computed  # type: ignore[attr-defined]
        had_work = self.engine.has_work
        self.engine.step()
        self.scheduler.check()
        ended = [request for request in self.open if request.is_finished]
        if had_work and self.scheduler.has_work:
            assert ended or self.engine.runner.num_computed > computed_before  # type: ignore[attr-defined]
        self._check_caps()
        for request in self.open:
            waited = (request.scheduled_at or self.clock.now) - request.arrived_at
            self.longest_wait = max(self.longest_wait, waited)
        for request in ended:
            self._check_end(request)
        self.open = [request for request in self.open if not request.is_finished]

    def _check_caps(self) -> None:
        most = self.scheduler.limits.max_seqs_per_tenant
        now = Counter(r.tenant for r in self.scheduler.running if r.tenant)
        for tenant, count in now.items():
            assert most is None or count <= max(most, self.slots[tenant])
        self.slots = now

    slots: Counter[str] = field(default_factory=Counter)

    def _check_end(self, request: Request) -> None:
        if request.finish_reason is FinishReason.ABORTED:
            self.aborted += 1
            return
        self.finished += 1
        assert request.finish_reason is FinishReason.LENGTH
        expected = uninterrupted(request.token_ids[: request.num_prompt], request.max_tokens)
        assert output_of(request) == expected


EVENTS = ("arrive", "abort", "preempt", "cap", "drain", "step")
WEIGHTS = (20, 2, 2, 0.5, 0.2, 75)


def live(seed: int, num_events: int) -> World:
    world = World(seed)
    for name in world.rng.choices(EVENTS, WEIGHTS, k=num_events):
        getattr(world, name)()
        world.scheduler.check()
    world.scheduler.limits = replace(world.scheduler.limits, max_seqs_per_tenant=None)
    world.drain()
    assert not world.open
    assert world.finished > num_events / 100
    assert world.longest_wait <= world.bound
    return world


@pytest.mark.parametrize("seed", range(6))
def test_the_scheduler_survives_random_events(seed: int) -> None:
    live(seed, 500)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_the_scheduler_survives_a_hundred_thousand_events(seed: int) -> None:
    live(seed, 10_000)


@pytest.mark.parametrize("seed", range(5))
def test_two_tenants_that_always_wait_get_the_same_within_the_bound(seed: int) -> None:
    """VTC's bound: 2 * max(w_in * longest prompt, w_out * most tokens in a batch)."""
    rng = random.Random(seed)
    num_blocks = 32
    scheduler = make_scheduler(num_blocks=num_blocks, block_size=BLOCK, max_num_seqs=8, max_wait=1e9)
    engine = make_engine(scheduler, ScriptedRunner())
    longest = {"heavy": 40, "light": 6}
    bound = 2 * max(PROMPT_WEIGHT * max(longest.values()), OUTPUT_WEIGHT * num_blocks * BLOCK)
    service = Counter[str]()
    admitted: set[Request] = set()
    unfinished: list[Request] = []

    def deliver(output: Output) -> None:
        service[output.request.tenant] += int(OUTPUT_WEIGHT)

    for _ in range(1500):
        waiting = Counter(request.tenant for request in scheduler.waiting)
        for tenant, most in longest.items():
            for _ in range(12 - waiting[tenant]):  # more than one step can admit: neither queue is ever empty
                num_prompt, max_tokens = rng.randint(1, most), rng.randint(1, 20)
                unfinished.append(make_request(num_prompt, max_tokens=max_tokens, tenant=tenant, deliver=deliver))
                engine.submit(unfinished[-1])
        engine.step()
        for request in unfinished:
            if request.scheduled_at is not None and request not in admitted:
                admitted.add(request)
                service[request.tenant] += int(PROMPT_WEIGHT * request.num_prompt)
        unfinished = [request for request in unfinished if not request.is_finished]
        assert abs(service["heavy"] - service["light"]) <= bound
    assert min(service.values()) > 10 * bound
