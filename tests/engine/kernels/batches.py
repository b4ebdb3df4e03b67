"""Steps for the kernel tests: sequences on scattered pages of a pool, everybody else's pages filled with NaN."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from tidewheel.engine.kernels.interface import AttentionBatch, Kernels, Shape

PAGE = 16


@dataclass(frozen=True, slots=True)
class Sequence:
    """`computed` tokens are in the cache already; this step brings `queries` more."""

    computed: int
    queries: int = 1

    @property
    def context(self) -> int:
        return self.computed + self.queries


def make_shape(num_heads: int, num_kv_heads: int, head_dim: int) -> Shape:
    return Shape(num_heads, num_kv_heads, head_dim, block_size=PAGE)


def make_cos_sin(head_dim: int, positions: int = 1024) -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def make_tables(sequences: list[Sequence], *, seed: int = 0, spare: int = 3) -> tuple[Tensor, int]:
    """Block tables over a shuffled pool with a few blocks that nobody owns; unused entries name a spare block."""
    pages = [-(-s.context // PAGE) for s in sequences]
    order = torch.randperm(sum(pages) + spare, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.full((len(sequences), max(pages)), order[-1], dtype=torch.int32)
    for index, count in enumerate(pages):
        table[index, :count] = torch.tensor(order[:count], dtype=torch.int32)
        order = order[count:]
    return table, sum(pages) + spare


def make_batch(sequences: list[Sequence], table: Tensor, *, padding: int = 0) -> AttentionBatch:
    """Rows of this step, and `padding` more sequences of one row each, with slot -1 and context 1."""
    positions, slots = [], []
    for index, s in enumerate(sequences):
        for position in range(s.computed, s.context):
            positions.append(position)
            slots.append(int(table[index, position // PAGE]) * PAGE + position % PAGE)
    starts = torch.tensor([0, *(s.queries for s in sequences), *([1] * padding)]).cumsum(0)
    decodes = [s.queries == 1 for s in sequences] + [False]
    return AttentionBatch(
        positions=torch.tensor(positions + [0] * padding),
        slots=torch.tensor(slots + [-1] * padding),
        query_starts=starts.to(torch.int32),
        sample_rows=starts[1:] - 1,
        num_decodes=decodes.index(False),
        context_lens=torch.tensor([s.context for s in sequences] + [1] * padding, dtype=torch.int32),
        block_tables=torch.cat((table, table[:1].expand(padding, -1))) if padding else table,
    )


@dataclass(frozen=True, slots=True)
class Case:
    """The same tokens for every implementation: what earlier steps stored, then this step's qkv."""

    shape: Shape
    sequences: list[Sequence]
    table: Tensor
    num_blocks: int
    earlier: Tensor  # qkv rows of the tokens already computed, sequence after sequence
    qkv: Tensor
    padding: int = 0

    def run(
        self, kernels: Kernels, *, dtype: torch.dtype, device: str = "cpu", earlier_by: Kernels | None = None
    ) -> Tensor:
        """The attention output in fp32. The pool starts as NaN wherever no token is stored.

        `earlier_by` stores the earlier tokens, for kernels that are slow at it and share the other's layout.
        """
        shape = self.shape
        cos_sin = make_cos_sin(shape.head_dim).to(device)
        kv = kernels.allocate_kv(self.num_blocks, shape, dtype, torch.device(device)).fill_(float("nan"))
        past = [i for i, s in enumerate(self.sequences) if s.computed]
        if past:
            before = make_batch([Sequence(0, self.sequences[i].computed) for i in past], self.table[past])
            rows = self.earlier.to(device, dtype, copy=True)
            (earlier_by or kernels).rope_and_store(rows, cos_sin, kv, on(before, device), shape)
        batch = on(make_batch(self.sequences, self.table, padding=self.padding), device)
        q = kernels.rope_and_store(self.qkv.to(device, dtype, copy=True), cos_sin, kv, batch, shape)
        return kernels.attention(q, kv, batch, shape).float().cpu()


def on(batch: AttentionBatch, device: str) -> AttentionBatch:
    tensors = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name != "num_decodes"}
    return replace(batch, **{name: tensor.to(device) for name, tensor in tensors.items()})


def make_case(sequences: list[Sequence], shape: Shape, *, seed: int = 0, padding: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    table, num_blocks = make_tables(sequences, seed=seed)
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim

    def rows(count: int) -> Tensor:
        # bf16 values, so that an implementation in bf16 and the reference in fp32 start from the same numbers
        return torch.randn((count, width), generator=generator).bfloat16().float()

    return Case(
        shape=shape,
        sequences=sequences,
        table=table,
        num_blocks=num_blocks,
        earlier=rows(sum(s.computed for s in sequences)),
        qkv=rows(sum(s.queries for s in sequences) + padding),
        padding=padding,
    )
