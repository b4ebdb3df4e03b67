"""Plain torch: the oracle of every other implementation, and what runs where none of them can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from tidewheel.engine.kernels.interface import AttentionBatch, HeadAdjustment, Linear, Recording, Shape


@dataclass(frozen=True, slots=True)
class PlainLinear:
    weight: Tensor


class ReferenceKernels:
    name = "reference"
    recorded_sizes: tuple[int, ...] = ()

    def record(self, run: Callable[[], Tensor]) -> Recording:
        raise NotImplementedError("plain torch records nothing: recorded_sizes is empty")

    def rows(self, table: Tensor, ids: Tensor) -> Tensor:
        return table[ids]

    def pack(self, weight: Tensor) -> PlainLinear:
        return PlainLinear(weight)

    def pack_gate_up(self, gate: Tensor, up: Tensor) -> PlainLinear:
        return PlainLinear(torch.cat([gate, up]))

    def linear(self, x: Tensor, weight: Linear) -> Tensor:
        return F.linear(x, _plain(weight))

    def logits(self, x: Tensor, weight: Linear) -> Tensor:
        return F.linear(x, _plain(weight)).float()

    def linear_add(self, x: Tensor, weight: Linear, residual: Tensor) -> Tensor:
        return residual.add_(F.linear(x, _plain(weight)))

    def gate_up(self, x: Tensor, weight: Linear) -> Tensor:
        gate, up = F.linear(x, _plain(weight)).chunk(2, dim=-1)
        return F.silu(gate) * up

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _normalise(x, weight, eps)

    def adjust_heads(self, qkv: Tensor, adjustment: HeadAdjustment, shape: Shape) -> Tensor:
        return adjust_heads(qkv, adjustment, shape)

    def allocate_kv(self, num_blocks: int, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        size = (num_blocks, 2, shape.block_size, shape.num_kv_heads, shape.head_dim)
        return torch.zeros(size, dtype=dtype, device=device)

    def rope_and_store(self, qkv: Tensor, cos_sin: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        q, k, v = torch.split(heads, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
        cos, sin = cos_sin[batch.positions].unsqueeze(1).chunk(2, dim=-1)
        q, k = _turn(q, cos, sin), _turn(k, cos, sin)
        block, offset = batch.slots // shape.block_size, batch.slots % shape.block_size
        kv[block, 0, offset] = k
        kv[block, 1, offset] = v
        return q

    def attention(self, q: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
        out = torch.empty_like(q)
        num_decodes = batch.num_decodes
        if num_decodes:
            out[:num_decodes] = _decode(q[:num_decodes], kv, batch, shape)
        starts, lens = batch.query_starts.tolist(), batch.context_lens.tolist()
        for index in range(num_decodes, len(lens)):
            rows = slice(starts[index], starts[index + 1])
            out[rows] = _prefill(q[rows], kv, batch.block_tables[index], lens[index], shape)
        return out.view(len(q), -1)

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        values, ids = logits.max(dim=-1)
        return values, ids


def adjust_heads(qkv: Tensor, adjustment: HeadAdjustment, shape: Shape) -> Tensor:
    if adjustment.bias is not None:
        qkv = qkv + adjustment.bias
    if adjustment.q_norm is None or adjustment.k_norm is None:
        return qkv
    heads = qkv.view(len(qkv), -1, shape.head_dim)
    q, k, v = torch.split(heads, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    q, k = _normalise(q, adjustment.q_norm, adjustment.eps), _normalise(k, adjustment.k_norm, adjustment.eps)
    return torch.cat([q, k, v], dim=1).view(len(qkv), -1)


def _normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def _plain(weight: Linear) -> Tensor:
    assert isinstance(weight, PlainLinear)
    return weight.weight


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _gather(kv: Tensor, tables: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """K and V of some sequences as [sequences, kv heads, tokens, head_dim]."""
    pages = kv[tables.long()]
    flat = pages.transpose(1, 2).reshape(len(tables), 2, -1, shape.num_kv_heads, shape.head_dim).transpose(2, 3)
    return flat[:, 0], flat[:, 1]


def _decode(q: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
    lens = batch.context_lens[: batch.num_decodes]
    num_blocks = -(-int(lens.max()) // shape.block_size)
    k, v = _gather(kv, batch.block_tables[: batch.num_decodes, :num_blocks], shape)
    mask = torch.arange(k.shape[2], device=q.device) < lens[:, None]
    # What others left in the rest of a block may be NaN, and NaN times a weight of 0 is NaN.
    k, v = (x.masked_fill(~mask[:, None, :, None], 0) for x in (k, v))
    out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, attn_mask=mask[:, None, None], enable_gqa=True)
    return out.squeeze(2)


def _prefill(q: Tensor, kv: Tensor, table: Tensor, context_len: int, shape: Shape) -> Tensor:
    num_blocks = -(-context_len // shape.block_size)
    k, v = _gather(kv, table[None, :num_blocks], shape)
    k, v = k[:, :, :context_len], v[:, :, :context_len]
    first = context_len - len(q)
    mask = None
    if first:
        keys = torch.arange(context_len, device=q.device)
        mask = keys <= torch.arange(first, context_len, device=q.device)[:, None]
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return out[0].transpose(0, 1)
