"""The seam between the loop and the device: a step goes in, a token per sampling request comes out."""

from __future__ import annotations

from typing import Protocol

from tidewheel.engine.request import Request
from tidewheel.engine.scheduler import Sampled, Step


class Runner(Protocol):
    name: str  # "torch" or "simulated", as /load and /v1/models say it
    kernels: str  # which implementation computes: "cpu-bf16", "reference", "none"
    num_blocks: int
    max_model_len: int
    has_logits: bool  # without them there are no logprobs to report
    vocab_size: int  # width of the logits; every client token id is checked against it

    def execute(self, step: Step) -> dict[Request, Sampled]:
        """Compute the step. An exception here is fatal to the engine; a bad row is a `Sampled` with an error."""
        ...
