"""Public reports that no other file here covers; each names where it comes from."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest
from tests.engine.builders import (
    Clock,
    ScriptedRunner,
    make_engine,
    make_request,
    make_scheduler,
    output_of,
    run_until_idle,
    uninterrupted,
)
from tests.engine.random_model import RandomModel
from tests.engine.serving import MODEL, serving
from tests.waiting import PATIENCE_SECONDS

from tidewheel.engine.logs import Throttle


def test_a_short_prompt_with_a_long_reply_is_prefilled_whole_after_a_preemption() -> None:
    """gaudi#1243."""
    scheduler = make_scheduler(num_blocks=300, block_size=4, budget=64, max_model_len=1200)
    engine = make_engine(scheduler)
    requests = [make_request(3, max_tokens=1000) for _ in range(2)]
    for request in requests:
        engine.submit(request)
    run_until_idle(engine, max_steps=5000)
    assert scheduler.num_preemptions > 0
    for request in requests:
        assert output_of(request) == uninterrupted(request.token_ids[:3], 1000)


async def test_eight_choices_at_a_high_temperature_differ_and_come_back_with_their_seed() -> None:
    """vllm#11898."""
    async with serving(runner=RandomModel()) as client:
        fields = {"n": 8, "temperature": 1.2, "seed": 5, "max_tokens": 6, "ignore_eos": True}
        first, again = [
            [choice["message"]["content"] for choice in (await client.chat(**fields))[1]["choices"]] for _ in range(2)
        ]
    assert first == again
    assert len(set(first)) > 1


async def test_computed_and_cached_tokens_add_up_to_the_prompt_after_a_preemption() -> None:
    """vllm#36812: a hit that is larger at the second admission than at the first must break no counter."""
    runner = ScriptedRunner(num_blocks=12, block_size=16, vocab_size=500)
    async with serving(runner=runner, max_model_len=190) as client:
        replies = await asyncio.gather(
            *(client.complete([7 + i] * 40, max_tokens=100, ignore_eos=True) for i in range(4))
        )
        text = client.service.metrics.exposition().decode()
        assert client.service.engine.scheduler.num_preemptions > 0
    assert all(status == 200 for status, _ in replies)
    values = {line.split("{")[0]: 0.0 for line in text.splitlines() if line.startswith("vllm:prompt_tokens")}
    for line in text.splitlines():
        if line.startswith("vllm:prompt_tokens"):
            values[line.split("{")[0]] += float(line.rsplit(" ", 1)[1])
    assert values["vllm:prompt_tokens_total"] == values["vllm:prompt_tokens_by_source_total"] == 160


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_finish_reason_of_each_chunk_is_null_or_legal(path: str) -> None:
    """ollama#4357."""
    async with serving() as client:
        events = (await client.stream(path, n=2, max_tokens=5, stream_options={"include_usage": True}))[:-1]
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert set(reasons) <= {None, "stop", "length"}
    assert len([reason for reason in reasons if reason]) == 2


def test_a_thousand_failures_are_a_few_lines_and_none_is_forgotten() -> None:
    """inference-sim#963."""
    clock = Clock()
    throttle = Throttle(most=20, period=10, clock=clock)
    admitted = [left_out for _ in range(1000) if (left_out := throttle.admit()) is not None]
    assert admitted == [0] * 20
    clock.now = 11
    assert throttle.admit() == 980


async def test_many_failed_requests_are_logged_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    runner = ScriptedRunner(
        num_blocks=256, block_size=16, vocab_size=500, choose=lambda r: 50 if r.is_warm_up else None
    )
    async with serving(runner=runner) as client:
        with caplog.at_level(logging.WARNING):
            statuses = [(await client.complete([5], max_tokens=2))[0] for _ in range(60)]
    assert statuses == [500] * 60
    assert sum("request failed" in record.message for record in caplog.records) == 20


async def test_a_step_that_runs_out_of_memory_ends_the_engine_and_tells_everybody() -> None:
    """What a step had half done cannot be trusted; a new process starts clean."""

    def explode(step: Any) -> None:
        if any(item.request.num_output == 3 for item in step.work.values()):
            raise MemoryError("no memory for this step")

    runner = ScriptedRunner(num_blocks=256, block_size=16, vocab_size=500, before_step=explode)
    async with serving(runner=runner) as client:
        events = await client.stream("/v1/completions", max_tokens=9, ignore_eos=True)
        assert events[-2]["error"]["code"] == "engine_dead"
        status, document = await client.get("/health")
        assert (status, document["dead"]) == (503, True)
        assert (await client.complete())[0] == 503


async def test_a_client_that_stops_reading_is_cut_off_and_holds_up_nobody() -> None:
    async with serving(write_timeout=0.3, kv_memory=1 << 30, max_model_len=4096) as client:
        host, port = client.url.removeprefix("http://").split(":")
        body = b'{"model": "demo", "prompt": "x", "n": 16, "max_tokens": 4000, "ignore_eos": true, "stream": true}'
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, (host, int(port)))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
            await loop.sock_sendall(deaf, head.encode() + body)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not client.service.num_open:
                    await asyncio.sleep(0.005)
                assert (await client.complete("y", max_tokens=3))[0] == 200
                while client.service.num_open:
                    await asyncio.sleep(0.01)
        await client.until_idle()
        scheduler = client.service.engine.scheduler
        assert scheduler.pool.num_free == scheduler.pool.num_blocks
        assert (await client.complete("z", max_tokens=3, model=MODEL))[0] == 200
