"""Caps per tenant, the floor share between lanes, and how often a request can be evicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.engine.builders import (
    AnyTokenRunner,
    Clock,
    make_engine,
    make_request,
    make_scheduler,
    output_of,
    uninterrupted,
)
from tests.engine.serving import MODEL, serving

from tidewheel.engine.errors import ContextLengthError, StartError
from tidewheel.engine.lanes import WaitingLanes
from tidewheel.engine.request import Request
from tidewheel.engine.scheduler import Limits, Step
from tidewheel.engine.token_file import TokenFile


def test_a_tenant_at_its_slots_waits_and_others_overtake_it() -> None:
    scheduler = make_scheduler(num_blocks=64, max_seqs_per_tenant=2)
    engine = make_engine(scheduler)
    many = [make_request(4, max_tokens=20, tenant="many") for _ in range(10)]
    for request in many:
        engine.submit(request)
    few = make_request(4, max_tokens=3, tenant="few")
    engine.submit(few)
    engine.step()
    running = Counter(request.tenant for request in scheduler.running)
    assert running == {"many": 2, "few": 1}
    assert scheduler.num_deferred == 8
    while engine.has_work:
        engine.step()
        assert Counter(r.tenant for r in scheduler.running)["many"] <= 2
    assert all(r.is_finished for r in many)
    assert scheduler.num_deferred == 0


def test_a_tenant_never_holds_more_pages_than_its_cap_and_still_finishes() -> None:
    scheduler = make_scheduler(num_blocks=40, max_blocks_per_tenant=8)
    engine = make_engine(scheduler)
    requests = [make_request(6, max_tokens=20, tenant=tenant) for tenant in ["a"] * 6 + ["b"] * 2]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
        scheduler.check()
        held = Counter[str]()
        for request in scheduler.running:
            held[request.tenant] += len(request.blocks)
        assert max(held.values(), default=0) <= 8
    for request in requests:
        assert output_of(request) == uninterrupted(request.token_ids[:6], 20)


def test_a_request_that_could_never_fit_its_cap_is_refused_at_once() -> None:
    scheduler = make_scheduler(num_blocks=40, block_size=4, max_blocks_per_tenant=4)
    assert scheduler.max_model_len == 16
    with pytest.raises(ContextLengthError):
        scheduler.fit(num_prompt=10, max_tokens=7, param="prompt")


def test_requests_without_a_tenant_have_no_caps() -> None:
    scheduler = make_scheduler(num_blocks=64, max_seqs_per_tenant=1, max_blocks_per_tenant=4)
    engine = make_engine(scheduler)
    for _ in range(5):
        engine.submit(make_request(4, max_tokens=4))
    engine.step()
    assert len(scheduler.running) == 5


def test_five_hundred_long_requests_of_one_tenant_leave_room_for_others() -> None:
    """Before: they fill an idle replica, and the next tenant waits until one of them ends."""

    def steps_until_first_token(cap: int | None) -> int:
        scheduler = make_scheduler(num_blocks=500, max_num_seqs=32, max_seqs_per_tenant=cap, max_model_len=1500)
        engine = make_engine(scheduler)
        for _ in range(500):
            engine.submit(make_request(4, max_tokens=40, tenant="many"))
        for _ in range(3):
            engine.step()
        other = make_request(4, max_tokens=4, tenant="other")
        engine.submit(other)
        for steps in range(1, 200):
            engine.step()
            if other.num_output:
                return steps
        raise AssertionError("never served")

    assert steps_until_first_token(None) > 30
    assert steps_until_first_token(24) == 1


def test_a_backlog_that_waited_long_does_not_go_before_other_tenants() -> None:
    """Seen in `bench.engine_tenants`: once 500 requests of one tenant were old, ageing served them all first."""
    fair = short_requests_beside_long_ones(cap=None, names_tenants=True, max_wait=0.2)
    assert fair.first_token < 5


def test_an_old_crowd_in_a_low_lane_leaves_a_high_lane_every_second_turn() -> None:
    lanes = WaitingLanes(("paid", "free"), max_wait=1.0)
    for _ in range(6):
        lanes.push(make_request(4, lane="free", arrived_at=0.0))
    for _ in range(6):
        lanes.push(make_request(4, lane="paid", arrived_at=9.0))
    served = []
    for _ in range(8):
        request = lanes.peek(9.5)
        assert request is not None
        assert lanes.peek(9.5) is request, "looking changes nothing"
        served.append(request.lane)
        lanes.remove(request)
    assert served == ["free", "paid"] * 4


@dataclass(frozen=True)
class Waits:
    """Of the short requests, the worst, in seconds."""

    first_token: float
    per_token: float


def short_requests_beside_long_ones(*, cap: int | None, names_tenants: bool, max_wait: float = 10.0) -> Waits:
    """60 requests for 200 tokens at once, then 20 short ones of others; a step takes 2 ms and 1 ms for each request."""
    clock = Clock()

    def tick(step: Step) -> None:
        clock.now += 0.002 + 0.001 * len(step.work)

    scheduler = make_scheduler(num_blocks=4000, max_num_seqs=16, max_seqs_per_tenant=cap, max_wait=max_wait)
    engine = make_engine(scheduler, AnyTokenRunner(before_step=tick), clock=clock)
    for _ in range(60):
        engine.submit(make_request(8, max_tokens=200, tenant="many" * names_tenants))
    short: list[Request] = []
    while len(short) < 20 or not all(request.is_finished for request in short):
        if len(short) < 20 and clock.now >= 0.1 * (len(short) + 1):
            tenant = f"few-{len(short) % 4}" * names_tenants
            short.append(make_request(8, max_tokens=5, tenant=tenant, arrived_at=clock.now))
            engine.submit(short[-1])
        engine.step()
    first = [(request.first_token_at or 0.0) - request.arrived_at for request in short]
    each = [((r.last_token_at or 0.0) - (r.first_token_at or 0.0)) / (r.num_output - 1) for r in short]
    return Waits(max(first), max(each))


def test_caps_keep_short_requests_of_others_inside_their_targets() -> None:
    """`bench.engine_tenants` has the figures at full size."""
    assert short_requests_beside_long_ones(cap=None, names_tenants=False).first_token > 5
    fair = short_requests_beside_long_ones(cap=None, names_tenants=True)
    assert 1 < fair.first_token < 5, "fairness alone still waits for a slot to fall free"
    capped = short_requests_beside_long_ones(cap=8, names_tenants=True)
    assert capped.first_token < 0.05
    assert capped.per_token < 0.02


def test_the_lowest_lane_gets_its_floor_beside_an_endless_high_one() -> None:
    """vllm#20608, sglang#31954. Ageing is off here: the share alone must do it."""
    scheduler = make_scheduler(num_blocks=16, max_num_seqs=2, max_wait=1e9, floor_share=0.1)
    engine = make_engine(scheduler)
    served = Counter[str]()
    for _ in range(40):
        engine.submit(make_request(8, max_tokens=4, lane="background"))
    for _ in range(2000):
        while scheduler.waiting.depths()["paid"] < 4:
            scheduler.submit(make_request(8, max_tokens=4, lane="paid"))
        before = {request: request.num_output for request in scheduler.running}
        engine.step()
        for request in before:
            if request.is_finished:
                served[request.lane] += 1
        if not scheduler.waiting.depths()["background"]:
            break
    share = served["background"] / served.total()
    assert 0.08 < share < 0.14


def test_without_a_floor_the_lowest_lane_waits_for_ageing() -> None:
    scheduler = make_scheduler(num_blocks=16, max_num_seqs=1, max_wait=1e9, floor_share=0.0)
    engine = make_engine(scheduler)
    low = make_request(4, max_tokens=2, lane="background")
    engine.submit(low)
    for _ in range(200):
        engine.submit(make_request(4, max_tokens=2, lane="paid"))
        engine.step()
    assert not low.is_finished


def test_a_lane_saves_no_claims_while_nobody_waits_in_it() -> None:
    lanes = WaitingLanes(("paid", "background"), max_wait=1e9, floor_share=0.2)
    for _ in range(50):
        paid = make_request(4, lane="paid")
        lanes.push(paid)
        lanes.push(make_request(4, lane="paid"))
        lanes.charge_prompt(paid)
    low = make_request(4, lane="background")
    lanes.push(low)
    assert lanes.peek(0.0) is not low


def test_floors_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="floor share"):
        WaitingLanes(("a", "b", "c"), max_wait=1, floor_share=0.5)


def test_a_request_is_evicted_a_few_times_and_then_stays() -> None:
    """Else an endless stream of short paid requests could keep a background one from ever ending."""
    scheduler, clock = make_scheduler(num_blocks=6, block_size=4, max_wait=3), Clock()
    engine = make_engine(scheduler, clock=clock)
    low = make_request(8, max_tokens=8, lane="background")
    engine.submit(low)
    while not low.is_finished and clock.now < 400:
        clock.now += 1
        if not any(request.lane == "paid" for request in (*scheduler.running, *scheduler.waiting)):
            engine.submit(make_request(12, max_tokens=2, lane="paid", arrived_at=clock.now))
        engine.step()
        scheduler.check()
    assert low.is_finished
    assert 1 <= low.num_evictions <= scheduler.limits.max_evictions
    assert output_of(low) == uninterrupted(low.token_ids[:8], 8)


@pytest.mark.parametrize("name", ["max_seqs_per_tenant", "max_blocks_per_tenant"])
def test_a_cap_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(max_model_len=8, **{name: 0})


async def test_deferred_requests_are_counted_apart() -> None:
    async with serving(max_seqs_per_tenant=1, step_time="50,0,0") as client:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 300, "stream": True, "ignore_eos": True}
        sessions = [
            client.session.post("/v1/completions", json=body, headers={"X-Tidewheel-Tenant": "t"}) for _ in range(1)
        ]
        async with sessions[0] as first:
            await first.content.readany()
            waiting = client.service.engine.scheduler
            second = make_request(4, tenant="t")
            client.service.engine.submit(second)
            while not waiting.num_deferred:
                await first.content.readany()
            text = client.service.metrics.exposition().decode()
            client.service.engine.abort(second)
    line = next(line for line in text.splitlines() if 'reason="deferred"' in line)
    assert line.endswith(" 1.0")


# The bearer token


def test_a_new_token_counts_at_the_next_look_and_the_old_one_for_a_grace_time(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first\n")
    tokens = TokenFile(str(file), grace=60, clock=clock)
    assert tokens.tokens() == ["first"]
    replacement = tmp_path / "new"
    replacement.write_text("second")
    replacement.rename(file)
    clock.now += 2
    assert tokens.tokens() == ["second", "first"]
    clock.now += 59
    assert tokens.tokens() == ["second", "first"]
    clock.now += 2
    assert tokens.tokens() == ["second"]


@pytest.mark.parametrize("content", [None, ""], ids=["gone", "empty"])
def test_a_token_file_that_is_gone_or_empty_changes_nothing(tmp_path: Path, content: str | None) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first")
    tokens = TokenFile(str(file), grace=60, clock=clock)
    file.unlink()
    if content is not None:
        file.write_text(content)
    clock.now += 5
    assert tokens.tokens() == ["first"]
    file.write_text("second")
    clock.now += 5
    assert tokens.tokens()[0] == "second"


@pytest.mark.parametrize("content", [None, " \n"], ids=["missing", "empty"])
def test_a_start_without_a_token_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(StartError, match="--api-token-file"):
        TokenFile(str(tmp_path / "token"), grace=60)
