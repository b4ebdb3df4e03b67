"""Token quotas: all counters or none, refunded once, truthful, also by leases and when clocks misbehave."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.gateway.admission.bucket import Bucket
from tidewheel.gateway.admission.limits import duration, quota_headers
from tidewheel.gateway.admission.quota import (
    Limit,
    LocalBuckets,
    Quota,
    QuotaAwayError,
    Reservation,
    Shortage,
    Taken,
    Want,
)

TOKENS = Limit(("tokens", "alice"), "tokens", 1000.0, 10.0)
TOTAL = Limit(("total",), "tokens", 1500.0, 10.0)
REQUESTS = Limit(("requests", "alice"), "requests", 10.0, 1.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def exact(clock: Clock) -> Quota:
    return Quota(LocalBuckets(clock), clock=clock)


async def taken(quota: Quota, *wanted: tuple[Limit, float]) -> Reservation:
    answer = await quota.reserve(wanted)
    assert isinstance(answer, Reservation)
    return answer


async def test_a_request_is_charged_in_tokens_and_the_rest_comes_back_once() -> None:
    """wso2#2932, ai-gateway#1754: what the header says is what the bucket holds."""
    clock = Clock()
    quota = exact(clock)
    held = await taken(quota, (TOKENS, 600.0), (REQUESTS, 1.0))
    assert quota.standing(TOKENS).remaining == 400
    held.settle(150.0)
    held.settle(None)
    assert (quota.standing(TOKENS).remaining, quota.standing(REQUESTS).remaining) == (850, 9)


async def test_a_request_that_came_to_nothing_cost_nothing() -> None:
    quota = exact(Clock())
    (await taken(quota, (TOKENS, 600.0), (REQUESTS, 1.0))).settle(None)
    assert (quota.standing(TOKENS).remaining, quota.standing(REQUESTS).remaining) == (1000, 10)


async def test_a_refused_request_takes_from_no_counter() -> None:
    quota = exact(Clock())
    await taken(quota, (TOTAL, 1000.0))
    refused = await quota.reserve([(REQUESTS, 1.0), (TOKENS, 900.0), (TOTAL, 900.0)])
    assert isinstance(refused, Shortage)
    assert (refused.limit.key, refused.wait) == (("total",), 40.0)
    assert (quota.standing(TOKENS).remaining, quota.standing(REQUESTS).remaining) == (1000, 10)


async def test_the_wait_that_is_told_is_the_wait_that_suffices() -> None:
    clock = Clock()
    quota = exact(clock)
    await taken(quota, (TOKENS, 1000.0))
    refused = await quota.reserve([(TOKENS, 300.0)])
    assert isinstance(refused, Shortage)
    clock.now += refused.wait - 0.01
    assert isinstance(await quota.reserve([(TOKENS, 300.0)]), Shortage)
    clock.now += 0.02
    await taken(quota, (TOKENS, 300.0))


async def test_a_hundred_at_once_get_no_more_than_there_is() -> None:
    """litellm#18730, ai-gateway#680."""
    quota = exact(Clock())
    answers = await asyncio.gather(*[quota.reserve([(TOKENS, 95.0)]) for _ in range(100)])
    assert sum(isinstance(answer, Reservation) for answer in answers) == 10


@pytest.mark.parametrize("step", [3600.0, -3600.0], ids=["forward", "back"])
def test_a_clock_that_steps_locks_nobody_out_and_gives_one_bucketful_at_most(step: float) -> None:
    """langchain#24961. Here clocks are monotonic; a shared store's is not."""
    bucket = Bucket(1000.0, 10.0, 0.0, 5000.0)
    bucket.refill(5000.0 + step)
    assert bucket.level == (1000.0 if step > 0 else 0.0)
    bucket.refill(5000.0 + step + 10.0)
    assert bucket.level == min(1000.0, (1000.0 if step > 0 else 0.0) + 100.0)


class Shared:
    """One store for several gateways; ``away`` makes it fail, ``slow`` lets others in between."""

    def __init__(self, clock: Clock) -> None:
        self._buckets = LocalBuckets(clock)
        self.away = False
        self.asked = 0

    async def take(self, wants: Sequence[Want]) -> Sequence[Taken] | Shortage:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise QuotaAwayError
        return await self._buckets.take(wants)

    def give(self, limit: Limit, amount: float) -> None:
        if not self.away:
            self._buckets.give(limit, amount)


async def test_gateways_with_leases_overshoot_by_no_more_than_their_leases() -> None:
    """Stated overshoot: gateways x lease, here 4 x 2 % of 1000, beside what flows in."""
    clock = Clock()
    store = Shared(clock)
    quotas = [Quota(store, clock=clock, lease_share=0.02) for _ in range(4)]
    admitted = 0.0
    for quota in quotas:  # each takes a lease, while the bucket refills behind it
        await taken(quota, (TOKENS, 1.0))
        admitted += 1.0
    clock.now += 20.0
    for number in range(2000):
        answer = await quotas[number % 4].reserve([(TOKENS, 1.0)])
        admitted += isinstance(answer, Reservation)
    assert 1000 <= admitted <= 1000 + 4 * 20 + 20
    assert store.asked < 1300, "most requests ask nobody while leases last"


async def test_a_store_that_is_away_leaves_the_lease_and_then_says_so() -> None:
    clock = Clock()
    store = Shared(clock)
    quota = Quota(store, clock=clock, lease_share=0.1)
    await taken(quota, (TOKENS, 1.0))
    store.away = True
    await taken(quota, (TOKENS, 90.0))
    with pytest.raises(QuotaAwayError):
        await quota.reserve([(TOKENS, 90.0)])
    await taken(quota, (TOKENS, 10.0))


async def test_a_lease_that_nobody_used_is_forgotten() -> None:
    clock = Clock()
    store = Shared(clock)
    quota = Quota(store, clock=clock, lease_share=0.1, lease_seconds=30.0)
    await taken(quota, (TOKENS, 1.0))
    clock.now += 31.0
    store.away = True
    with pytest.raises(QuotaAwayError):
        await quota.reserve([(TOKENS, 1.0)])


async def test_a_lease_moves_nothing_that_users_see() -> None:
    clock = Clock()
    quota = Quota(Shared(clock), clock=clock, lease_share=0.3)
    seen = []
    for _ in range(20):
        await taken(quota, (TOKENS, 10.0))
        seen.append(quota.standing(TOKENS).remaining)
    assert seen == [1000 - 10 * (number + 1) for number in range(20)]


@pytest.mark.parametrize("step", range(1, 4))
async def test_cancelled_while_the_store_is_asked_nothing_local_is_lost(step: int) -> None:
    clock = Clock()
    store = Shared(clock)
    quota = Quota(store, clock=clock, lease_share=0.1)
    await taken(quota, (TOKENS, 1.0))
    asking = asyncio.ensure_future(quota.reserve([(TOKENS, 150.0)]))
    for _ in range(step - 1):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    store.away = True
    await taken(quota, (TOKENS, 100.0))


@given(st.lists(st.tuples(st.sampled_from(["take", "settle", "drop", "wait"]), st.integers(0, 400)), max_size=40))
def test_whatever_happens_a_bucket_stays_within_its_bounds_and_ends_full(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_whatever_happens(steps))


async def _whatever_happens(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    quota, open_ = exact(clock), list[tuple[Reservation, int]]()
    for what, number in steps:
        if what == "take":
            answer = await quota.reserve([(TOKENS, float(number)), (REQUESTS, 1.0)])
            if isinstance(answer, Reservation):
                open_.append((answer, number))
        elif what == "wait":
            clock.now += number / 100
        elif open_:
            held, reserved = open_.pop(number % len(open_))
            held.settle(None if what == "drop" else float(number % (2 * reserved + 1)))
        assert 0 <= quota.standing(TOKENS).remaining <= 1000
        assert 0 <= quota.standing(REQUESTS).remaining <= 10
    for held, _ in open_:
        held.settle(None)
    clock.now += 101.0
    assert quota.standing(TOKENS).remaining == 1000
    assert quota.standing(REQUESTS).remaining == 10


async def test_headers_are_of_the_tightest_counter_and_never_early() -> None:
    quota = exact(Clock())
    held = await taken(quota, (TOKENS, 1000.0), (TOTAL, 1000.0), (REQUESTS, 1.0))
    assert dict(quota_headers(held.standings())) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m40s",
    }
    assert [duration(each) for each in (0, 0.0001, 0.5, 59.2, 360, 3725)] == [
        *("0s", "1ms", "500ms", "1m0s", "6m0s", "1h2m5s"),
    ]
