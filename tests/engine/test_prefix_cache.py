"""Shared prefixes: found when equal, never when only similar, and never across salts."""

from __future__ import annotations

import random
from collections.abc import Sequence

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

from tidewheel.engine.blocks import Block, BlockPool, PrefixHasher
from tidewheel.engine.request import Request


def serve(engine, prompt: Sequence[int], *, max_tokens: int = 4, salt: bytes = b"") -> Request:  # type: ignore[no-untyped-def]
    request = make_request(prompt, max_tokens=max_tokens, salt=salt)
    engine.submit(request)
    run_until_idle(engine)
    return request


PROMPT = list(range(10, 30))


def test_a_repeated_prompt_recomputes_one_block_and_answers_the_same() -> None:
    """nano-vllm#117, nano-vllm#144."""
    engine = make_engine(make_scheduler(num_blocks=32, block_size=4))
    first = serve(engine, PROMPT[:8])
    second = serve(engine, PROMPT[:8])
    assert (first.num_cached, second.num_cached) == (0, 4)
    assert output_of(first) == output_of(second)


@pytest.mark.parametrize("shared", range(21))
def test_every_hit_length_gives_the_answer_of_a_miss(shared: int) -> None:
    """tenstorrent#415. The runner checks that each request reads KV of its own tokens only."""
    engine = make_engine(make_scheduler(num_blocks=32, block_size=4))
    serve(engine, PROMPT)
    prompt = PROMPT[:shared] + [90 + i % 5 for i in range(21 - shared)]
    request = serve(engine, prompt)
    assert request.num_cached == shared // 4 * 4
    assert output_of(request) == uninterrupted(prompt, 4)


def test_a_partial_block_is_not_shared() -> None:
    """vllm#5188."""
    engine = make_engine(make_scheduler(num_blocks=32, block_size=4))
    serve(engine, [*PROMPT[:3], 50], max_tokens=1)
    assert serve(engine, [*PROMPT[:3], 51, 52], max_tokens=1).num_cached == 0


def test_the_second_turn_finds_the_first_reply() -> None:
    engine = make_engine(make_scheduler(num_blocks=32, block_size=4))
    first = serve(engine, PROMPT[:6], max_tokens=11)
    second = serve(engine, [*first.token_ids, 40, 41])
    assert second.num_cached == 16  # 17 tokens; the last was sampled but never computed


def test_two_equal_prompts_in_one_step_keep_their_own_kv() -> None:
    """mini-sglang#142."""
    scheduler = make_scheduler(num_blocks=32, block_size=4)
    engine = make_engine(scheduler)
    twins = [make_request(PROMPT[:8], max_tokens=6) for _ in range(2)]
    for request in twins:
        engine.submit(request)
    engine.step()
    third = make_request(PROMPT[:12], max_tokens=6)
    engine.submit(third)
    run_until_idle(engine)
    assert output_of(twins[0]) == output_of(twins[1]) == uninterrupted(PROMPT[:8], 6)
    assert output_of(third) == uninterrupted(PROMPT[:12], 6)
    assert third.num_cached == 8


def test_different_salts_never_share() -> None:
    """vllm#53347, vllm#44701."""
    engine = make_engine(make_scheduler(num_blocks=32, block_size=4))
    serve(engine, PROMPT, salt=b"tenant-a")
    assert serve(engine, PROMPT, salt=b"tenant-b").num_cached == 0
    assert serve(engine, PROMPT, salt=b"tenant-a").num_cached > 0


def test_keys_differ_between_processes_unless_the_root_is_given() -> None:
    """vllm#12621."""

    def keys(root: bytes) -> list[bytes]:
        found: list[bytes] = []
        PrefixHasher(root=root, block_size=4).extend(found, PROMPT, salt=b"")
        return found

    assert keys(b"one") == keys(b"one")
    assert not set(keys(b"one")) & set(keys(b"two"))


def test_salt_and_tokens_cannot_be_shifted_into_each_other() -> None:
    def first_key(salt: bytes, ids: Sequence[int]) -> bytes:
        keys: list[bytes] = []
        PrefixHasher(root=b"r", block_size=4).extend(keys, ids, salt=salt)
        return keys[0]

    assert first_key(b"ab", [1, 2, 3, 4]) != first_key(b"a", [1, 2, 3, 4])
    assert first_key(b"", [1, 2, 3, 4]) != first_key(bytes([1, 0, 0, 0]), [2, 3, 4, 5])


def test_equal_keys_of_different_tokens_are_no_hit() -> None:
    """openvino.genai#3722: a hash alone is not proof."""
    pool = BlockPool(num_blocks=4, block_size=2)
    (block,) = pool.take(1)
    pool.publish(block, b"same", [1, 2])
    assert pool.lookup([b"same"], [1, 3], max_tokens=2) == []
    assert pool.lookup([b"same"], [1, 2], max_tokens=2) == [block]


def test_cached_blocks_are_used_up_least_recently_used_first() -> None:
    pool = BlockPool(num_blocks=3, block_size=1)
    blocks = pool.take(3)
    for index, block in enumerate(blocks):
        pool.publish(block, bytes([index]), [index])
    for index in (1, 0, 2):
        pool.release([blocks[index]])
    assert pool.take(1) == [blocks[1]]
    assert pool.lookup([b"\x01"], [1], max_tokens=1) == []
    assert pool.lookup([b"\x00"], [0], max_tokens=1) == [blocks[0]]


def test_blocks_that_hold_nothing_are_taken_before_cached_ones() -> None:
    pool = BlockPool(num_blocks=2, block_size=1)
    cached, plain = pool.take(2)
    pool.publish(cached, b"k", [1])
    pool.release([cached])
    pool.release([plain])
    assert pool.take(1) == [plain]


def test_the_start_of_a_prefix_outlives_its_end() -> None:
    pool = BlockPool(num_blocks=3, block_size=1)
    table = pool.take(3)
    for index, block in enumerate(table):
        pool.publish(block, bytes([index]), [index])
    pool.release(table)
    assert pool.take(1) == [table[2]]


def test_a_revived_block_leaves_the_free_list() -> None:
    engine = make_engine(make_scheduler(num_blocks=4, block_size=4))
    serve(engine, PROMPT[:8], max_tokens=1)
    pool = engine.scheduler.pool
    assert pool.num_free == 4
    second = make_request([*PROMPT[:8], 1], max_tokens=3)
    engine.submit(second)
    engine.step()
    assert second.num_cached == 8
    assert pool.num_free == 1


def test_without_caching_nothing_is_found() -> None:
    engine = make_engine(make_scheduler(num_blocks=32, block_size=4, caches_prefixes=False))
    serve(engine, PROMPT)
    assert serve(engine, PROMPT).num_cached == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_books_balance_after_any_operations(seed: int) -> None:
    """sglang#35270."""
    rng = random.Random(seed)
    pool = BlockPool(num_blocks=12, block_size=1)
    tables: list[list[Block]] = []
    for _ in range(1000):
        match rng.randrange(4):
            case 0 if pool.num_free:
                tables.append(pool.take(rng.randint(1, pool.num_free)))
            case 1 if tables:
                pool.release(tables.pop(rng.randrange(len(tables))))
            case 2 if tables:
                number = rng.randrange(20)
                pool.publish(rng.choice(rng.choice(tables)), bytes([number]), [number])
            case 3:
                number = rng.randrange(20)
                found = pool.lookup([bytes([number])], [number], max_tokens=1)
                pool.hold(found)
                if found:
                    tables.append(found)
        pool.check(tables)


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    """vllm#36812: computed and cached tokens add up to the prompt."""
    runner = ScriptedRunner()
    scheduler = make_scheduler(num_blocks=10, block_size=4)
    engine = make_engine(scheduler, runner)
    requests = [make_request(8, max_tokens=12) for _ in range(3)]
    for request in requests:
        engine.submit(request)
    run_until_idle(engine)
    useful = sum(r.num_known - 1 for r in requests)
    assert useful <= runner.num_computed < 1.5 * useful
    assert all(r.num_cached == 0 for r in requests)
