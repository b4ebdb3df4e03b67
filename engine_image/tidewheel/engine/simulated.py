"""The simulated runner: real scheduler, real blocks, no model. For tests of everything around the engine.

A step waits for the time a stated model gives, and each next token is a pure function of all tokens before it (and of
the seed, if sampling), as with a real model: so a reply that is continued elsewhere from its token ids goes on with the
same text. It names itself as simulated wherever it can.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tidewheel.engine.errors import GenerationError, StartError
from tidewheel.engine.faults import Faults
from tidewheel.engine.request import Request
from tidewheel.engine.scheduler import Sampled, Step
from tidewheel.engine.settings import Settings
from tidewheel.engine.simulated_text import (
    ASSISTANT_ID,
    CHAT_TEMPLATE,
    END_ID,
    FIRST_WORD_ID,
    SIMULATED_VOCAB,
    simulated_tokenizer,
)
from tidewheel.engine.tokenizer import ModelTokenizer

_KV_BYTES_PER_TOKEN = 23_040
_MAX_MODEL_LEN = 8192
_STALL_SECONDS = 3.0
_MODULUS = (1 << 61) - 1
_MULTIPLIER = 6364136223846793005


@dataclass(frozen=True, slots=True)
class StepTime:
    """Milliseconds of a step: base + per prefill token + per decoding sequence."""

    base_ms: float = 5.0
    per_prefill_token_ms: float = 0.02
    per_decode_seq_ms: float = 0.05

    @classmethod
    def parse(cls, text: str) -> StepTime:
        try:
            values = [float(part) for part in text.split(",")]
            if len(values) != 3 or not all(0 <= value < 1e9 for value in values):
                raise ValueError
        except ValueError:
            raise StartError(
                f"--step-time {text!r}: give three numbers, base_ms,per_prefill_token_ms,per_decode_seq_ms."
            ) from None
        return cls(*values)

    def seconds(self, step: Step) -> float:
        prefill = decode = 0
        for item in step.work.values():
            if item.num_tokens == 1:
                decode += 1
            else:
                prefill += item.num_tokens
        return (self.base_ms + self.per_prefill_token_ms * prefill + self.per_decode_seq_ms * decode) / 1000


@dataclass(slots=True)
class _Progress:
    """The running hash of a request's tokens, so that a step costs the same however long the request is."""

    state: int
    num_hashed: int
    num_reply: int  # tokens since the reply began, by the tokens alone


class SimulatedRunner:
    name = "simulated"
    kernels = "none"
    has_logits = False
    vocab_size = SIMULATED_VOCAB

    def __init__(
        self,
        *,
        num_blocks: int,
        max_model_len: int,
        step_time: StepTime,
        faults: Faults,
        reply_tokens: int = 256,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.num_blocks = num_blocks
        self.max_model_len = max_model_len
        self._step_time = step_time
        self._faults = faults
        self._reply_tokens = reply_tokens
        self._sleep = sleep
        self._progress: dict[Request, _Progress] = {}
        self._num_tokens = 0
        self._leaked: list[bytes] = []

    def execute(self, step: Step) -> dict[Request, Sampled]:
        self._sleep(self._step_time.seconds(step) * self._slowness())
        stalls = self._stalls()
        sampled = {item.request: self._sample(item.request) for item in step.work.values() if item.samples}
        if self._stalls() > stalls:
            self._sleep(_STALL_SECONDS)
        if len(self._progress) > 2 * len(step.work) + 64:
            self._progress = {r: p for r, p in self._progress.items() if not r.is_finished}
        return sampled

    def _slowness(self) -> float:
        slower = self._faults.slower
        return self._faults.slow * (1 + (self._num_tokens / slower if slower else 0))

    def _stalls(self) -> int:
        return self._num_tokens // self._faults.stall if self._faults.stall else 0

    def _sample(self, request: Request) -> Sampled:
        faults = self._faults
        if not request.is_warm_up:
            if faults.crash is not None and self._num_tokens >= faults.crash:
                os.kill(os.getpid(), signal.SIGKILL)
            if faults.hang is not None and self._num_tokens >= faults.hang:
                threading.Event().wait()
            if faults.die is not None and self._num_tokens >= faults.die:
                raise RuntimeError("the simulated fault 'die'")
            if faults.error_after is not None and request.num_output >= faults.error_after:
                return Sampled(None, GenerationError("A simulated fault ended this reply.", code="simulated_fault"))
            self._num_tokens += 1
            if faults.leak:
                # Written to, so that it is real memory and not a promise of the kernel's.
                self._leaked.append(b"\xff" * faults.leak)
        progress = self._advance(request)
        allowed = request.num_output >= request.sampling.min_tokens and not request.sampling.ignore_eos
        if progress.num_reply >= self._reply_tokens and allowed:
            return Sampled(END_ID)
        state = progress.state
        if not request.sampling.is_greedy:
            state = (state ^ request.sampling.seed) * _MULTIPLIER % _MODULUS
        return Sampled(FIRST_WORD_ID + (state >> 13) % (SIMULATED_VOCAB - FIRST_WORD_ID))

    def _advance(self, request: Request) -> _Progress:
        progress = self._progress.get(request)
        if progress is None:
            progress = self._progress[request] = _Progress(state=1, num_hashed=0, num_reply=-request.num_prompt)
        ids = request.token_ids
        for token_id in ids[progress.num_hashed :] if progress.num_hashed else ids:
            progress.state = ((progress.state ^ token_id) * _MULTIPLIER + 1442695040888963407) % _MODULUS
            progress.num_reply = 0 if token_id == ASSISTANT_ID else progress.num_reply + 1
        progress.num_hashed = len(ids)
        return progress


def simulated_runner(
    settings: Settings, *, step_time: StepTime, faults: Faults
) -> tuple[SimulatedRunner, ModelTokenizer]:
    """As many blocks as SmolLM2's KV would have in the same memory, so that capacity behaves alike."""
    num_blocks = max(1, settings.kv_memory // (_KV_BYTES_PER_TOKEN * settings.block_size))
    runner = SimulatedRunner(
        num_blocks=num_blocks,
        max_model_len=settings.max_model_len or _MAX_MODEL_LEN,
        step_time=step_time,
        faults=faults,
        reply_tokens=settings.reply_tokens,
    )
    tokenizer = ModelTokenizer(simulated_tokenizer(), eos_ids=frozenset({END_ID}), chat_template=CHAT_TEMPLATE)
    return runner, tokenizer
