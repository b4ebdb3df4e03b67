"""What works on one row at a time: RMSNorm, SiLU of the gate times up, rope with the store of K and V."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tidewheel.engine.kernels.interface import AttentionBatch, Shape

_BLOCK = 1024


@triton.jit
def _rms_norm(x_ptr, weight_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + columns, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x)
    _rms_norm[(x.shape[0],)](x, weight, out, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


@triton.jit
def _silu_mul(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(x_ptr + row * 2 * width + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + columns, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * width + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul(x: Tensor) -> Tensor:
    """`x` is [rows, gate and up]."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty((rows, width))
    _silu_mul[(rows, triton.cdiv(width, _BLOCK))](x, out, width, BLOCK=_BLOCK)
    return out


@triton.jit
def _rope_and_store(
    qkv_ptr, cos_sin_ptr, kv_ptr, positions_ptr, slots_ptr, block_stride, num_heads, num_kv_heads,
    D: tl.constexpr, HALF_PADDED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Program (row, head of q, k or v): q is turned in place; turned k and plain v go to the row's slot, if any."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = D // 2
    dims = tl.arange(0, HALF_PADDED)
    mask = dims < half
    at = qkv_ptr + (row * tl.num_programs(1) + head) * D + dims
    first = tl.load(at, mask=mask, other=0.0)
    second = tl.load(at + half, mask=mask, other=0.0)
    if head < num_heads + num_kv_heads:
        turn = cos_sin_ptr + tl.load(positions_ptr + row) * D + dims
        cos, sin = tl.load(turn, mask=mask, other=0.0), tl.load(turn + half, mask=mask, other=0.0)
        a, b = first.to(tl.float32), second.to(tl.float32)
        first = (a * cos - b * sin).to(qkv_ptr.dtype.element_ty)
        second = (b * cos + a * sin).to(qkv_ptr.dtype.element_ty)
    if head < num_heads:
        tl.store(at, first, mask=mask)
        tl.store(at + half, second, mask=mask)
    else:
        slot = tl.load(slots_ptr + row)
        if slot >= 0:
            is_value = head >= num_heads + num_kv_heads
            kv_head = head - num_heads - tl.where(is_value, num_kv_heads, 0)
            token = tl.where(is_value, PAGE, 0) + slot % PAGE
            to = kv_ptr + (slot // PAGE) * block_stride + (token * num_kv_heads + kv_head) * D + dims
            tl.store(to, first, mask=mask)
            tl.store(to + half, second, mask=mask)


def rope_and_store(qkv: Tensor, cos_sin: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> None:
    _rope_and_store[(qkv.shape[0], shape.num_heads + 2 * shape.num_kv_heads)](
        qkv, cos_sin, kv, batch.positions, batch.slots, kv.stride(0), shape.num_heads, shape.num_kv_heads,
        D=shape.head_dim, HALF_PADDED=triton.next_power_of_2(shape.head_dim // 2), PAGE=shape.block_size,
    )  # fmt: skip
