"""A model that knows nothing: random logits, and the real sampler behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tests.engine.builders import ScriptedRunner

from tidewheel.engine.kernels.reference import ReferenceKernels
from tidewheel.engine.request import Request
from tidewheel.engine.sampler import Sampler
from tidewheel.engine.scheduler import Sampled, Step
from tidewheel.engine.simulated_text import END_ID, SIMULATED_VOCAB


@dataclass
class RandomModel(ScriptedRunner):
    """Speaks the simulated vocabulary. Ends as soon as it may; otherwise any token is as likely as another."""

    num_blocks: int = 256
    block_size: int = 16
    vocab_size: int = SIMULATED_VOCAB
    has_logits: bool = True
    edit: Callable[[torch.Tensor, Request], None] | None = None

    def execute(self, step: Step) -> dict[Request, Sampled]:
        requests = [item.request for item in step.work.values() if item.samples]
        super().execute(step)
        if not requests:
            return {}
        logits = torch.stack([self._logits(request) for request in requests])
        return dict(zip(requests, Sampler(ReferenceKernels().argmax).sample(logits, requests), strict=True))

    def _logits(self, request: Request) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash(tuple(request.token_ids)) & 0x7FFFFFFF)
        row = torch.randn(self.vocab_size, generator=generator)
        row[END_ID] = 8.0
        if self.edit is not None:
            self.edit(row, request)
        return row
