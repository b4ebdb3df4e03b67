"""Attention of chunks of prompts, packed without padding, over paged KV that already holds this step's tokens."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tidewheel.engine.kernels.cuda.device import UPCAST
from tidewheel.engine.kernels.interface import AttentionBatch, Shape

_ROWS = 64  # rows of a program: queries times the query heads of a kv head
_TILE = 32  # tokens a program reads at once


@triton.jit
def _attend_chunks(
    q_ptr, kv_ptr, starts_ptr, lens_ptr, tables_ptr, out_ptr, num_sequences, scale, q_stride, table_stride,
    block_stride, GROUP: tl.constexpr, QUERIES: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    D_PADDED: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Program (block of QUERIES queries, kv head).

    The grid is a bound that needs no look at the device: sequence i has its blocks from starts[i] // QUERIES + i on,
    and a program without queries returns.
    """
    program, kv_head = tl.program_id(0), tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    base = tl.load(starts_ptr)
    low, high = 0, num_sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        if (tl.load(starts_ptr + middle) - base) // QUERIES + middle <= program:
            low = middle
        else:
            high = middle - 1
    seq = low
    start = tl.load(starts_ptr + seq)
    num_queries = tl.load(starts_ptr + seq + 1) - start
    first_query = (program - ((start - base) // QUERIES + seq)) * QUERIES
    if first_query >= num_queries:
        return
    context = tl.load(lens_ptr + seq)

    rows, dims, offsets = tl.arange(0, M), tl.arange(0, D_PADDED), tl.arange(0, TILE)
    queries = first_query + rows // GROUP
    is_row = (rows < QUERIES * GROUP) & (queries < num_queries)
    mask = is_row[:, None] & (dims < D)[None, :]
    heads = kv_head * GROUP + rows % GROUP
    positions = context - num_queries + queries
    q_at = q_ptr + (start + queries).to(tl.int64)[:, None] * q_stride + heads[:, None] * D + dims[None, :]
    q = tl.load(q_at, mask=mask, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    top = tl.full([M], -1.0e30, tl.float32)  # finite, so that no exponent is inf - inf
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, D_PADDED], tl.float32)
    last = tl.minimum(context, context - num_queries + first_query + QUERIES)
    for begin in range(0, last, TILE):
        tokens = begin + offsets
        is_token = tokens < last
        page = tl.load(tables_ptr + seq * table_stride + tokens // PAGE, mask=is_token, other=0).to(tl.int64)
        k_row = page * block_stride + ((tokens % PAGE) * num_kv_heads + kv_head) * D
        kv_mask = is_token[:, None] & (dims < D)[None, :]
        k_at = kv_ptr + k_row[:, None] + dims[None, :]
        k = tl.load(k_at, mask=kv_mask, other=0.0)
        v = tl.load(k_at + PAGE * num_kv_heads * D, mask=kv_mask, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(is_token[None, :] & (tokens[None, :] <= positions[:, None]), scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(weights, 1)
        out = out * decay[:, None] + tl.dot(weights.to(v.dtype), v)
        top = new_top

    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    num_heads = num_kv_heads * GROUP
    out_at = out_ptr + ((start + queries).to(tl.int64)[:, None] * num_heads + heads[:, None]) * D + dims[None, :]
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=mask)


def prefill_attention(q: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape, *, out: Tensor) -> None:
    """The sequences after the leading decodes; their rows of `out` are written."""
    decodes, group = batch.num_decodes, shape.num_heads // shape.num_kv_heads
    starts, lens, tables = (x[decodes:] for x in (batch.query_starts, batch.context_lens, batch.block_tables))
    rows = max(_ROWS, triton.next_power_of_2(group))
    queries = rows // group
    grid = ((q.shape[0] - decodes) // queries + len(lens), shape.num_kv_heads)
    _attend_chunks[grid](
        q, kv, starts, lens, tables, out, len(lens), shape.head_dim**-0.5 * 1.4426950408889634,
        q.stride(0), tables.stride(0), kv.stride(0),
        GROUP=group, QUERIES=queries, M=rows, D=shape.head_dim, D_PADDED=triton.next_power_of_2(shape.head_dim),
        PAGE=shape.block_size, TILE=_TILE, UPCAST=UPCAST,
    )  # fmt: skip
