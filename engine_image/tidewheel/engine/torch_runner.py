"""Runs a step on torch: builds the ragged batch, calls the model, samples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tidewheel.engine.errors import StartError
from tidewheel.engine.kernels.interface import AttentionBatch, Kernels
from tidewheel.engine.kernels.recorded import RecordedDecodes
from tidewheel.engine.model.llama import Llama
from tidewheel.engine.parallel import Alone, Group
from tidewheel.engine.request import Request
from tidewheel.engine.sampler import Sampler
from tidewheel.engine.scheduler import Sampled, Scheduled, Step


class TorchRunner:
    name = "torch"
    has_logits = True

    def __init__(
        self,
        model: Llama,
        *,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
        kv_memory: int,
        group: Group | None = None,
    ) -> None:
        """`kv_memory`: bytes for each rank of `group`."""
        self.kernels = kernels.name
        self.max_model_len = model.config.max_exact_len
        self.vocab_size = model.config.vocab_size
        self.num_blocks = _num_blocks(model, dtype, kv_memory)
        self._model = model
        self._device = device
        self._group = group or Alone()
        self._sampler = Sampler(kernels.argmax)
        try:
            self._pools = [
                kernels.allocate_kv(self.num_blocks, model.shape, dtype, device) for _ in range(model.config.num_layers)
            ]
        except (RuntimeError, MemoryError) as error:
            raise StartError(f"--kv-memory {kv_memory}: the machine cannot give that much; lower it.") from error

        self._decodes = RecordedDecodes(
            lambda ids, batch: model.logits(ids, batch, self._pools),
            kernels,
            max_blocks=min(self.num_blocks, -(-self.max_model_len // model.shape.block_size)),
            device=device,
        )

    @torch.inference_mode()
    def record_decodes(self) -> None:
        """Every batch size now, rather than each in the middle of the first request that needs it."""
        self._decodes.record_all()

    @torch.inference_mode()
    def execute(self, step: Step) -> dict[Request, Sampled]:
        # Decodes first: attention treats them as one batch.
        items = sorted(step.work.values(), key=lambda item: item.num_tokens > 1)
        requests = [item.request for item in items if item.samples]
        token_ids, batch = self._token_ids(items), self._batch(items)
        self._group.share(token_ids, batch)
        logits = self.compute(token_ids, batch)
        return dict(zip(requests, self._sampler.sample(logits, requests), strict=True)) if requests else {}

    @torch.inference_mode()
    def compute(self, token_ids: Tensor, batch: AttentionBatch) -> Tensor:
        """The logits of a step; every rank of a group computes them."""
        if self._group.can_record and self._decodes.covers(batch):
            return self._decodes.run(token_ids, batch)
        return self._model.logits(token_ids, batch, self._pools)

    def close(self) -> None:
        """Lets the other ranks end. Nothing can be computed afterwards."""
        self._group.close()

    def _token_ids(self, items: list[Scheduled]) -> Tensor:
        ids: list[int] = []
        for request, start, count in items:
            ids += request.token_ids[start : start + count]
        return torch.tensor(ids, device=self._device)

    def _batch(self, items: list[Scheduled]) -> AttentionBatch:
        size = self._model.shape.block_size
        # In arrays, not lists: beside a prompt of 100,000 tokens every table is as wide as that prompt's.
        tables = np.zeros((len(items), max(len(item.request.blocks) for item in items)), np.int32)
        for row, item in zip(tables, items, strict=True):
            row[: len(item.request.blocks)] = [block.id for block in item.request.blocks]
        counts = np.array([item.num_tokens for item in items])
        firsts = np.array([item.start for item in items])
        ends = counts.cumsum()
        owners = np.repeat(np.arange(len(items)), counts)
        positions = np.arange(ends[-1]) + (firsts - ends + counts)[owners]
        slots = tables[owners, positions // size].astype(np.int64) * size + positions % size
        samples = np.array([item.samples for item in items])
        return AttentionBatch(
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            query_starts=self._tensor(np.concatenate(([0], ends)).astype(np.int32)),
            context_lens=self._tensor((firsts + counts).astype(np.int32)),
            block_tables=self._tensor(tables),
            sample_rows=self._tensor(ends[samples] - 1),
            num_decodes=int((counts == 1).sum()),
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _num_blocks(model: Llama, dtype: torch.dtype, kv_memory: int) -> int:
    shape = model.shape
    per_block = 2 * shape.block_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize * model.config.num_layers
    num_blocks = kv_memory // per_block
    if num_blocks < 1:
        raise StartError(f"--kv-memory {kv_memory} holds no block; one takes {per_block} bytes.")
    return num_blocks
