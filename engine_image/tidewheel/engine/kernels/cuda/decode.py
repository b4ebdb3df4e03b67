"""Attention of one new token per sequence over its paged KV, the context cut into splits that run side by side."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tidewheel.engine.kernels.cuda.device import UPCAST, num_processors
from tidewheel.engine.kernels.interface import AttentionBatch, Shape

_TILE = 16  # tokens a program reads at once
_MIN_SPLIT = 256  # tokens; a shorter split costs more in merging than it gains
_MAX_SPLITS = 64


@triton.jit
def _attend_split(
    q_ptr, kv_ptr, tables_ptr, lens_ptr, partial_ptr, lse_ptr, scale, q_stride, table_stride, block_stride,
    GROUP: tl.constexpr, M: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Program (sequence, kv head, split). Query heads of a kv head are rows of one product: K, V are read once."""
    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_kv_heads, num_splits = tl.num_programs(1), tl.num_programs(2)
    context = tl.load(lens_ptr + seq)
    tiles = tl.cdiv(tl.cdiv(context, TILE), num_splits)
    first = split * tiles * TILE
    last = tl.minimum(first + tiles * TILE, context)

    rows, dims, offsets = tl.arange(0, M), tl.arange(0, D_PADDED), tl.arange(0, TILE)
    is_row, is_dim = rows < GROUP, dims < D
    heads = kv_head * GROUP + rows
    q_at = q_ptr + seq.to(tl.int64) * q_stride + heads[:, None] * D + dims[None, :]
    q = tl.load(q_at, mask=is_row[:, None] & is_dim[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    top = tl.full([M], -1.0e30, tl.float32)  # finite, so that no exponent is inf - inf
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, D_PADDED], tl.float32)
    for start in range(first, last, TILE):
        tokens = start + offsets
        is_token = tokens < last
        page = tl.load(tables_ptr + seq * table_stride + tokens // PAGE, mask=is_token, other=0).to(tl.int64)
        k_row = page * block_stride + ((tokens % PAGE) * num_kv_heads + kv_head) * D
        mask = is_token[:, None] & is_dim[None, :]
        k_at = kv_ptr + k_row[:, None] + dims[None, :]
        k = tl.load(k_at, mask=mask, other=0.0)
        v = tl.load(k_at + PAGE * num_kv_heads * D, mask=mask, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(weights, 1)
        out = out * decay[:, None] + tl.dot(weights.to(v.dtype), v)
        top = new_top

    # An empty split leaves zeros and minus infinity, which the merge gives no weight.
    at = ((seq * num_kv_heads + kv_head) * GROUP + rows) * num_splits + split
    is_empty = total == 0.0
    out = out / tl.where(is_empty, 1.0, total)[:, None]
    lse = tl.where(is_empty, float("-inf"), top + tl.log2(tl.where(is_empty, 1.0, total)))
    tl.store(partial_ptr + at[:, None] * D + dims[None, :], out, mask=is_row[:, None] & is_dim[None, :])
    tl.store(lse_ptr + at, lse, mask=is_row)


@triton.jit
def _merge_splits(
    partial_ptr, lse_ptr, out_ptr, num_splits, D: tl.constexpr, D_PADDED: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """Program (row of a sequence and head): the splits' results, weighed by their share of the softmax."""
    row = tl.program_id(0)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, D_PADDED)
    lse = tl.load(lse_ptr + row * num_splits + splits, mask=splits < num_splits, other=float("-inf"))
    top = tl.max(lse, 0)
    weights = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    at = (row * num_splits + splits)[:, None] * D + dims[None, :]
    mask = (splits < num_splits)[:, None] & (dims < D)[None, :]
    parts = tl.load(partial_ptr + at, mask=mask, other=0.0)
    total = tl.sum(weights, 0)
    out = tl.sum(parts * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row.to(tl.int64) * D + dims, out.to(out_ptr.dtype.element_ty), mask=dims < D)


def choose_num_splits(*, num_sequences: int, num_kv_heads: int, max_context: int, processors: int) -> int:
    """A power of two that fills the processors, with splits long enough to be worth merging. No look at the device."""
    wanted = processors // max(1, num_sequences * num_kv_heads)
    allowed = min(max_context // _MIN_SPLIT, _MAX_SPLITS)
    splits = 1
    while splits * 2 <= min(wanted, allowed):
        splits *= 2
    return splits


def decode_attention(
    q: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape, *, out: Tensor, num_splits: int | None = None
) -> None:
    """`q` is [rows, heads, D] with any row stride; the first num_decodes rows of `out` are written."""
    count, group = batch.num_decodes, shape.num_heads // shape.num_kv_heads
    if num_splits is None:
        num_splits = choose_num_splits(
            num_sequences=count,
            num_kv_heads=shape.num_kv_heads,
            max_context=batch.block_tables.shape[1] * shape.block_size,
            processors=num_processors(q.device),
        )
    rows = count * shape.num_heads
    partial = torch.empty((rows, num_splits, shape.head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((rows, num_splits), dtype=torch.float32, device=q.device)
    padded = triton.next_power_of_2(shape.head_dim)
    _attend_split[(count, shape.num_kv_heads, num_splits)](
        q, kv, batch.block_tables, batch.context_lens, partial, lse, shape.head_dim**-0.5 * 1.4426950408889634,
        q.stride(0), batch.block_tables.stride(0), kv.stride(0),
        GROUP=group, M=max(16, triton.next_power_of_2(group)), D=shape.head_dim, D_PADDED=padded,
        PAGE=shape.block_size, TILE=_TILE, UPCAST=UPCAST,
    )  # fmt: skip
    _merge_splits[(rows,)](
        partial, lse, out, num_splits, D=shape.head_dim, D_PADDED=padded, SPLITS=triton.next_power_of_2(num_splits)
    )
