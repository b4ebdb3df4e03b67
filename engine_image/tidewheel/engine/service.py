"""Between HTTP and the step loop: what may start, what is open, and whether this replica is alive, ready, draining."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from tidewheel.engine.engine import Engine
from tidewheel.engine.errors import (
    EngineDeadError,
    GenerationError,
    InvalidRequestError,
    RequestError,
    UnavailableError,
)
from tidewheel.engine.faults import Faults
from tidewheel.engine.logs import Throttle
from tidewheel.engine.metrics import Metrics
from tidewheel.engine.replies import Choice, Reply
from tidewheel.engine.request import FinishReason, Output, Request, SamplingParams
from tidewheel.engine.schema import ChatBody, CompletionBody, GenerationBody
from tidewheel.engine.settings import Settings
from tidewheel.engine.structured import GrammarCompiler, Matcher
from tidewheel.engine.text import TextStream
from tidewheel.engine.tokenizer import ModelTokenizer
from tidewheel.engine.tool_parser import ToolParser
from tidewheel.engine.tools import ToolUse
from tidewheel.engine.tracing import Tracing

logger = logging.getLogger(__name__)

# Longer texts are tokenized in a thread: a millisecond on the event loop delays every stream.
_INLINE_CHARACTERS = 4000


class Service:
    def __init__(
        self,
        *,
        engine: Engine,
        tokenizer: ModelTokenizer,
        settings: Settings,
        metrics: Metrics,
        model_names: Sequence[str],
        faults: Faults | None = None,
        tracing: Tracing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.settings = settings
        self.metrics = metrics
        self.model_names = tuple(model_names)
        self.is_warm = False
        self.is_draining = False
        self.refuses_work = False
        self._faults = faults or Faults()
        self._tracing = tracing
        self._error_share = 0.0
        self._clock = clock
        self._next_id = 0
        self._open: dict[Reply, str] = {}
        self._random = random.Random()
        self._grammars = GrammarCompiler(tokenizer, vocab_size=engine.runner.vocab_size)

    # Readings

    @property
    def is_ready(self) -> bool:
        return self.is_warm and not self.is_draining and self.is_healthy

    @property
    def is_healthy(self) -> bool:
        stalled = self.engine.seconds_without_progress() > self.settings.hang_timeout
        return self.engine.death is None and not stalled

    @property
    def num_open(self) -> int:
        return len(self._open)

    def load(self) -> dict[str, Any]:
        scheduler = self.engine.scheduler
        now = self._clock()
        fit = self.engine.step_times.fit()
        oldest = min((r.arrived_at for reply in list(self._open) for r in reply.requests), default=None)
        return {
            "running": len(scheduler.running),
            "waiting": self.engine.num_waiting,
            "waiting_by_lane": scheduler.waiting.depths(),
            "free_blocks": scheduler.pool.num_free,
            "total_blocks": scheduler.pool.num_blocks,
            "open_replies": len(self._open),
            "draining": self.is_draining,
            "ready": self.is_ready,
            "step_time_seconds": self.engine.step_time,
            "oldest_stream_seconds": None if oldest is None else now - oldest,
            "max_model_len": scheduler.max_model_len,
            "max_num_seqs": scheduler.limit.value,
            "step_time_fit": None if fit is None else asdict(fit),
            "runner": self.engine.runner.name,
            "kernels": self.engine.runner.kernels,
            "model": self.model_names[0],
        }

    # Work

    async def open_chat(self, body: ChatBody, *, label: str, lane: str, tenant: str) -> Reply:
        self._check_open(lane)
        messages = [message.for_template() for message in body.messages]
        use = body.tool_use(self.tokenizer.chat_template)
        constraint = await self._compile(body, use)
        tools = None if use is None else use.for_template()
        size = sum(len(message["content"]) for message in messages) + (0 if tools is None else _INLINE_CHARACTERS)
        ids = await _maybe_in_thread(size, lambda: self.tokenizer.encode_chat(messages, tools=tools))
        return self._open_reply(
            body, [ids], max_tokens=body.wanted_tokens, param="messages", label=label, lane=lane, tenant=tenant,
            constraint=constraint, tool_use=use,
        )  # fmt: skip

    async def open_completion(self, body: CompletionBody, *, label: str, lane: str, tenant: str) -> Reply:
        self._check_open(lane)
        prompts: list[list[int]] = []
        for prompt in body.prompts:
            if isinstance(prompt, str):
                ids = await _maybe_in_thread(len(prompt), partial(self.tokenizer.encode_prompt, prompt))
            else:
                ids = self._check_ids(prompt)
            prompts.append(ids)
        if not prompts:
            raise InvalidRequestError("prompt is empty; send at least one token.", param="prompt")
        if body.emitted_tokens > min(map(len, prompts)):
            message = "emitted_tokens: the prompt has fewer tokens; it counts the last ones of the prompt."
            raise InvalidRequestError(message, param="emitted_tokens")
        constraint = await self._compile(body, None)
        return self._open_reply(
            body, prompts, max_tokens=body.wanted_tokens, param="prompt", label=label, lane=lane, tenant=tenant,
            constraint=constraint, tool_use=None, emitted=body.emitted_tokens,
        )  # fmt: skip

    def close(self, reply: Reply) -> None:
        """Ends whatever is left of a reply. Called exactly once, by whoever opened it."""
        finished = reply.is_finished
        reply.close()
        label, now = self._open.pop(reply, ""), self._clock()
        if self._tracing is not None and reply.parent:
            self._tracing.record(reply, label=label, finished=finished, now=now)
        fields = {
            "request_id": label,
            "prompt_tokens": reply.num_prompt_tokens,
            "cached_tokens": reply.num_cached_tokens,
            "output_tokens": reply.num_output_tokens,
            "seconds": round(now - reply.requests[0].arrived_at, 4),
        }
        logger.info("reply finished" if finished else "reply ended early", extra=fields)

    def abort(self, label: str) -> int:
        """Abort every open request with this X-Request-Id; how many there were."""
        requests = [r for reply, name in self._open.items() if name == label for r in reply.requests]
        for request in requests:
            self.engine.abort(request)
        return len(requests)

    # Lifecycle

    async def warm_up(self) -> None:
        """Generate a real token; only then is the replica ready."""
        await asyncio.sleep(self._faults.start_delay)
        began = self._clock()
        await asyncio.to_thread(self.tokenizer.prepare)
        if self.engine.runner.has_logits:
            await asyncio.to_thread(self._grammars.prepare)
        reply = Reply(self.engine.abort)
        ids = self.tokenizer.encode_prompt("Hello") or [0]
        request = self._request(reply, ids, 1, SamplingParams(temperature=0.0), label="warm-up", lane=None)
        request.is_warm_up = True
        reply.choices.append(Choice(0, request, ids, TextStream(self.tokenizer.token_bytes)))
        self.engine.submit(request)
        async for _ in reply.deltas():
            pass
        self.is_warm = not self._faults.not_ready
        logger.info("warmed up", extra={"seconds": round(self._clock() - began, 3), "ready": self.is_warm})

    def start_draining(self) -> None:
        """No longer ready. New work is refused once `refuses_work` is set too."""
        self.is_draining = True

    def interrupt_all(self) -> int:
        """End every open reply with a typed error, so that a gateway can continue it elsewhere."""
        error = UnavailableError("The engine is shutting down; this reply did not finish.", code="shutting_down")
        for reply in list(self._open):
            reply.interrupt(error)
        return len(self._open)

    # Details

    def _check_open(self, lane: str) -> None:
        if self.refuses_work:
            raise UnavailableError("This engine is draining and takes no new work.", code="draining", retry_after=1)
        if not self.is_warm:
            raise UnavailableError("This engine is still starting.", code="starting", retry_after=1)
        if self.engine.num_waiting >= self.settings.max_waiting:
            raise UnavailableError("Too many requests are waiting already.", code="overloaded", retry_after=1)
        if lane not in self.settings.lanes:
            known = ", ".join(self.settings.lanes)
            raise InvalidRequestError(f"X-Tidewheel-Lane: this engine has the lanes {known}.", param="X-Tidewheel-Lane")
        # Spread exactly: after k requests, floor(k * share) have failed.
        self._error_share += self._faults.error
        if self._error_share >= 1:
            self._error_share -= 1
            raise GenerationError("A simulated fault refused this request.", code="simulated_fault")

    async def _compile(self, body: GenerationBody, use: ToolUse | None) -> Matcher | None:
        grammar = body.grammar()
        if use is not None and use.grammar is not None:
            if grammar is not None:
                message = f"{grammar.param} cannot be combined with a tool call that must be made."
                raise InvalidRequestError(message, param=grammar.param)
            grammar = use.grammar
            body.check_beside(grammar)
        if grammar is None:
            return None
        if not self.engine.runner.has_logits:
            message = f"{grammar.param}: the simulated runner cannot keep to a structure."
            raise InvalidRequestError(message, param=grammar.param)
        return await self._grammars.compile(grammar)

    def _check_ids(self, ids: list[int]) -> list[int]:
        width = self.engine.runner.vocab_size
        if any(token_id >= width for token_id in ids):
            raise InvalidRequestError(f"prompt: token ids must be below {width}.", param="prompt")
        return ids

    def _open_reply(
        self,
        body: GenerationBody,
        prompts: list[list[int]],
        *,
        max_tokens: int | None,
        param: str,
        label: str,
        lane: str,
        tenant: str,
        constraint: Matcher | None,
        tool_use: ToolUse | None,
        emitted: int = 0,
    ) -> Reply:
        if body.num_logprobs is not None and not self.engine.runner.has_logits:
            raise InvalidRequestError("logprobs: the simulated runner has none to report.", param="logprobs")
        most_choices = self.settings.max_waiting
        if len(prompts) * body.n > most_choices:
            raise InvalidRequestError(f"prompt: prompts times n must be at most {most_choices}.", param="prompt")
        scheduler = self.engine.scheduler
        allowed = [scheduler.fit(num_prompt=len(ids), max_tokens=max_tokens, param=param) for ids in prompts]
        reply = Reply(self.engine.abort)
        # Made-up text stays the same from run to run; a real model without a seed draws anew each time.
        seed = 0 if self.engine.runner.name == "simulated" else self._random.getrandbits(62)
        for prompt, most in zip(prompts, allowed, strict=True):
            for child in range(body.n):
                sampling = body.sampling(vocab_size=self.engine.runner.vocab_size, child=child, default_seed=seed)
                request = self._request(reply, prompt, most, sampling, label=label, lane=lane, tenant=tenant)
                request.constraint = None if constraint is None else constraint.copy()
                if emitted:
                    request.count_as_output(emitted)
                text = TextStream(self.tokenizer.token_bytes, stops=body.stops, min_tokens=body.min_tokens)
                parser = None if tool_use is None else ToolParser(tool_use.format)
                reply.choices.append(Choice(len(reply.choices), request, prompt, text, parser))
        self.metrics.on_submit(max_tokens=max_tokens, num_choices=body.n)
        try:
            for request in reply.requests:
                self.engine.submit(request)
        except EngineDeadError as error:
            raise UnavailableError("The engine has died and is about to restart.", code="engine_dead") from error
        self._open[reply] = label
        return reply

    def _request(
        self,
        reply: Reply,
        prompt: list[int],
        max_tokens: int,
        sampling: SamplingParams,
        *,
        label: str,
        lane: str | None,
        tenant: str = "",
    ) -> Request:
        self._next_id += 1
        return Request(
            id=self._next_id,
            label=label,
            token_ids=list(prompt),
            num_prompt=len(prompt),
            max_tokens=max_tokens,
            sampling=sampling,
            eos_ids=self.tokenizer.eos_ids,
            lane=lane or self.settings.default_lane,
            arrived_at=self._clock(),
            deliver=reply.push,
            tenant=tenant,
            salt=tenant.encode(),
        )


class Dispatcher:
    """Carries each step's outputs from the loop's thread to the event loop, in one call per step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_outputs: Callable[[Sequence[Output]], None]) -> None:
        self._loop = loop
        self._on_outputs = on_outputs
        self._failures = Throttle(most=20, period=10.0)

    def __call__(self, outputs: list[Output]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, outputs)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            output.request.deliver(output)
            if output.finish_reason is FinishReason.FAILED and output.error is not None:
                self._log_failure(output.request.label, output.error)
        self._on_outputs(outputs)

    def _log_failure(self, label: str, error: RequestError) -> None:
        left_out = self._failures.admit()
        if left_out is not None:
            fields = {"request_id": label, "code": error.code, "left_out_before": left_out}
            logger.warning("request failed: %s", error.message, extra=fields)


async def _maybe_in_thread(size: int, encode: Callable[[], list[int]]) -> list[int]:
    return encode() if size <= _INLINE_CHARACTERS else await asyncio.to_thread(encode)
