"""The work queue: one look for many changes, one worker per model, back-off per model."""

import asyncio

import pytest

from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.reconciling.queue import Backoff, QueueClosed, WorkQueue

A, B = ModelKey("shop", "a"), ModelKey("shop", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(backoff=Backoff(random=lambda low, high: high), clock=clock)


async def test_a_model_that_is_added_often_is_given_out_once(queue: WorkQueue) -> None:
    for _ in range(200):
        queue.add(A)
    queue.add(B)
    assert [await queue.take(), await queue.take()] == [A, B]
    assert len(queue) == 0


async def test_a_model_that_changes_while_a_worker_has_it_is_given_out_again_afterwards(queue: WorkQueue) -> None:
    """kopf#698: 201 updates are few reconciles, and the last one is seen."""
    queue.add(A)
    await queue.take()
    for _ in range(200):
        queue.add(A)
    other = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not other.done(), "never two workers on one model"
    queue.done(A)
    assert await other == A
    queue.done(A)
    assert len(queue) == 0


async def test_later_means_later_and_the_earliest_wish_counts(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after(A, 10)
    queue.add_after(A, 5)
    queue.add_after(A, 20)
    taken = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not taken.done()
    clock.now = 5
    queue.add_after(B, 100)  # wakes the waiting worker, whose clock is not the loop's
    assert await taken == A
    queue.done(A)
    clock.now = 50
    queue.add(B)
    assert await queue.take() == B
    assert len(queue) == 0, "the other wishes were the same one"


async def test_back_off_grows_up_to_its_limit_and_ends_with_success(queue: WorkQueue) -> None:
    delays = [queue.retry(A) for _ in range(14)]
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert delays[-1] == 300.0
    assert queue.retry(B) == 0.2, "each model has its own"
    queue.succeeded(A)
    assert queue.retry(A) == 0.2
    assert queue.retry(A, at_least_seconds=5) == 5


def test_full_jitter_stays_in_its_bounds() -> None:
    backoff = Backoff()
    assert all(0 < backoff.delay(1) <= 0.2 for _ in range(100))
    assert all(backoff.delay(60) <= 300 for _ in range(100))


async def test_age_is_that_of_the_oldest_model_waiting_or_being_looked_at(queue: WorkQueue, clock: Clock) -> None:
    assert queue.oldest_seconds() == 0
    queue.add(A)
    clock.now = 3
    assert queue.oldest_seconds() == 3
    await queue.take()
    clock.now = 10
    assert queue.oldest_seconds() == 7
    queue.done(A)
    assert queue.oldest_seconds() == 0


async def test_a_closed_queue_ends_its_workers(queue: WorkQueue) -> None:
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(QueueClosed):
        await waiting
    queue.add(A)
    with pytest.raises(QueueClosed):
        await queue.take()
