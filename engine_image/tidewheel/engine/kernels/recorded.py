"""Decode steps without Python between the operations: recorded once for a number of rows, then replayed.

At one sequence the layer loop in Python is a seventh of a step on a CPU, and more than half of one on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tidewheel.engine.kernels.interface import AttentionBatch, Kernels, Recording


class RecordedDecodes:
    """Steps whose sequences have one row each. A recording reads its inputs from buffers that this object fills.

    A step with fewer rows than its recording is filled up with rows that store nothing and attend to one token.
    """

    def __init__(
        self,
        logits: Callable[[Tensor, AttentionBatch], Tensor],
        kernels: Kernels,
        *,
        max_blocks: int,
        device: torch.device,
    ) -> None:
        """`logits` computes a step; `max_blocks` is the most a sequence can have."""
        self._logits = logits
        self._kernels = kernels
        self._sizes = kernels.recorded_sizes
        self._recordings: dict[int, Recording] = {}
        most = max(self._sizes, default=0)
        self._token_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._inputs = AttentionBatch(
            positions=torch.zeros(most, dtype=torch.int64, device=device),
            slots=torch.full((most,), -1, dtype=torch.int64, device=device),
            query_starts=torch.arange(most + 1, dtype=torch.int32, device=device),
            context_lens=torch.ones(most, dtype=torch.int32, device=device),
            block_tables=torch.zeros((most, max_blocks), dtype=torch.int32, device=device),
            sample_rows=torch.arange(most, dtype=torch.int64, device=device),
            num_decodes=most,
        )

    def covers(self, batch: AttentionBatch) -> bool:
        rows = len(batch.positions)
        return batch.num_decodes == rows == len(batch.context_lens) and rows <= max(self._sizes, default=0)

    def run(self, token_ids: Tensor, batch: AttentionBatch) -> Tensor:
        """The same as `logits`, for a batch that is covered. The result is overwritten by the next step."""
        rows = len(token_ids)
        size = next(size for size in self._sizes if size >= rows)
        self._fill(token_ids, batch, size)
        if size not in self._recordings:
            self._record(size)
        recording = self._recordings[size]
        recording.replay()
        output = recording.output[:rows]
        return output if len(batch.sample_rows) == rows else output[batch.sample_rows]

    def record_all(self) -> None:
        """Every size now, the largest first: its memory serves the others."""
        for size in reversed(self._sizes):
            self._record(size)

    def _record(self, size: int) -> None:
        inputs, token_ids = self._first_rows(size), self._token_ids[:size]
        self._recordings[size] = self._kernels.record(lambda: self._logits(token_ids, inputs))

    def _fill(self, token_ids: Tensor, batch: AttentionBatch, size: int) -> None:
        rows, inputs = len(token_ids), self._inputs
        self._token_ids[:rows].copy_(token_ids)
        inputs.positions[:rows].copy_(batch.positions)
        inputs.slots[:rows].copy_(batch.slots)
        inputs.context_lens[:rows].copy_(batch.context_lens)
        inputs.block_tables[:rows, : batch.block_tables.shape[1]].copy_(batch.block_tables)
        if rows < size:
            inputs.slots[rows:size].fill_(-1)
            inputs.context_lens[rows:size].fill_(1)

    def _first_rows(self, size: int) -> AttentionBatch:
        inputs = self._inputs
        return AttentionBatch(
            positions=inputs.positions[:size],
            slots=inputs.slots[:size],
            query_starts=inputs.query_starts[: size + 1],
            context_lens=inputs.context_lens[:size],
            block_tables=inputs.block_tables[:size],
            sample_rows=inputs.sample_rows[:size],
            num_decodes=size,
        )
