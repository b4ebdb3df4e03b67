"""The operations a decoder layer is made of. An implementation owns the layout of weights and KV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers every attention operation needs."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where this step's rows sit. Sequence i owns rows query_starts[i] to query_starts[i + 1]."""

    positions: Tensor  # int64 [rows]
    slots: Tensor  # int64 [rows]: block id * block size + offset, where K and V go; -1 (in recordings): nowhere
    query_starts: Tensor  # int32 [sequences + 1]
    context_lens: Tensor  # int32 [sequences]: tokens visible to the sequence's last row
    block_tables: Tensor  # int32 [sequences, most blocks]
    sample_rows: Tensor  # int64: the rows whose logits are wanted
    num_decodes: int  # the leading sequences that have one row each


@dataclass(frozen=True, slots=True)
class HeadAdjustment:
    """What some families do to qkv before rope: a bias on all of it (Qwen2), a norm of each head of q and k (Qwen3)."""

    bias: Tensor | None  # [q, k and v outputs]
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None
    eps: float


class Linear(Protocol):
    """A packed weight; opaque to the model."""


class Recording(Protocol):
    """A step that runs again on what its input tensors hold by then."""

    output: Tensor  # overwritten by each replay

    def replay(self) -> None: ...


class Kernels(Protocol):
    """All activations are 2-D: one row per token."""

    name: str
    recorded_sizes: tuple[int, ...]  # numbers of rows that are worth a recording, ascending; none: it cannot record

    def record(self, run: Callable[[], Tensor]) -> Recording:
        """Run a step and remember its operations: a list of calls on CPUs, a CUDA graph on GPUs.

        The step's inputs must stay where they are. Inside, a result lives until the same operation is called again.
        """
        ...

    def pack(self, weight: Tensor) -> Linear:
        """`weight` is [out, in], in the model's dtype; it may be freed afterwards."""
        ...

    def pack_gate_up(self, gate: Tensor, up: Tensor) -> Linear: ...

    def rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """The rows of a 2-D tensor that `ids` (int64) name."""
        ...

    def linear(self, x: Tensor, weight: Linear) -> Tensor: ...

    def logits(self, x: Tensor, weight: Linear) -> Tensor:
        """linear(x) in float32"""
        ...

    def linear_add(self, x: Tensor, weight: Linear, residual: Tensor) -> Tensor:
        """residual + linear(x); may write into `residual`."""
        ...

    def gate_up(self, x: Tensor, weight: Linear) -> Tensor:
        """silu(gate(x)) * up(x)"""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def adjust_heads(self, qkv: Tensor, adjustment: HeadAdjustment, shape: Shape) -> Tensor:
        """The bias first, then the norms; may write into `qkv`."""
        ...

    def allocate_kv(self, num_blocks: int, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        """One layer's KV pool. The first dimension is the block."""
        ...

    def rope_and_store(self, qkv: Tensor, cos_sin: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
        """Turn q and k, put k and v into the pool, return q. `cos_sin`: float32 [positions, D], cosines, then sines."""
        ...

    def attention(self, q: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
        """Causal attention of every row over its sequence's pool blocks."""
        ...

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Largest value and its lowest id, per row; the value is NaN where the row holds one."""
        ...
