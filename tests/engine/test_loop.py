"""The step loop never waits for text: tokenizing, detokenizing, JSON and sockets belong to other threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.engine.serving import MODEL, serving

from tidewheel.engine import openai, replies, text
from tidewheel.engine.tokenizer import ModelTokenizer

TEXT_WORK = [
    (ModelTokenizer, "encode_prompt"), (ModelTokenizer, "encode_chat"), (ModelTokenizer, "token_bytes"),
    (text.TextStream, "feed"), (replies.Reply, "push"), (openai.ChatDialect, "chunk"), (openai.ChatDialect, "whole"),
]  # fmt: skip


async def test_no_text_work_runs_in_the_loop_s_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[str]] = {}

    def watched(kind: type, name: str) -> Any:
        original = getattr(kind, name)

        def call(*arguments: Any, **fields: Any) -> Any:
            seen.setdefault(name, set()).add(threading.current_thread().name)
            return original(*arguments, **fields)

        return call

    for kind, name in TEXT_WORK:
        monkeypatch.setattr(kind, name, watched(kind, name))
    async with serving() as client:
        await client.stream(stop=["zzz"], max_tokens=20)
        await client.chat(max_tokens=20)
    assert seen.keys() == {name for _, name in TEXT_WORK}
    assert not any("engine-loop" in threads for threads in seen.values())


async def test_a_busy_event_loop_does_not_hold_up_the_steps() -> None:
    async with serving(step_time="1,0,0") as client:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 480, "ignore_eos": True, "stream": True}
        async with client.session.post("/v1/completions", json=body) as response:
            await response.content.readany()
            engine = client.service.engine
            before = engine.num_steps
            deadline = time.monotonic() + 20
            while engine.num_steps < before + 50 and time.monotonic() < deadline:
                time.sleep(0.01)  # noqa: ASYNC251 - the event loop is to be blocked
            assert engine.num_steps >= before + 50


async def test_a_long_prompt_is_tokenized_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    original = ModelTokenizer.encode_prompt

    def encode(self: ModelTokenizer, prompt: str) -> list[int]:
        threads.append(threading.current_thread())
        return original(self, prompt)

    monkeypatch.setattr(ModelTokenizer, "encode_prompt", encode)
    async with serving() as client:
        threads.clear()
        await client.complete("x" * 20_000, max_tokens=1)
        await client.complete("x", max_tokens=1)
    assert [thread is threading.main_thread() for thread in threads] == [False, True]
