"""The decoder's operations on CUDA: matrix products by cuBLAS, everything around them by our Triton kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from tidewheel.engine.kernels.cuda import rows
from tidewheel.engine.kernels.cuda.decode import decode_attention
from tidewheel.engine.kernels.cuda.prefill import prefill_attention
from tidewheel.engine.kernels.interface import AttentionBatch, HeadAdjustment, Linear, Shape
from tidewheel.engine.kernels.reference import PlainLinear, adjust_heads


class CudaRecording:
    """A step as a CUDA graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self.output = output
        self._graph = graph

    def replay(self) -> None:
        self._graph.replay()


class TritonKernels:
    name = "triton"
    recorded_sizes: tuple[int, ...] = (1, 2, 4, 8, *range(16, 257, 8))

    def __init__(self) -> None:
        self._graph_pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None  # one for all graphs

    def record(self, run: Callable[[], Tensor]) -> CudaRecording:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()  # compiles the kernels, and lets cuBLAS take its workspace, neither of which a graph may hold
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            output = run()
        return CudaRecording(graph, output)

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
        # One launch: cuBLAS adds to what is there before it rounds.
        return residual.addmm_(x, _plain(weight).t())

    def gate_up(self, x: Tensor, weight: Linear) -> Tensor:
        return rows.silu_mul(F.linear(x, _plain(weight)))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rows.rms_norm(x, weight, eps)

    def adjust_heads(self, qkv: Tensor, adjustment: HeadAdjustment, shape: Shape) -> Tensor:
        return adjust_heads(qkv, adjustment, shape)

    def allocate_kv(self, num_blocks: int, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        """[blocks, K and V, page, kv heads, D]"""
        size = (num_blocks, 2, shape.block_size, shape.num_kv_heads, shape.head_dim)
        return torch.zeros(size, dtype=dtype, device=device)

    def rope_and_store(self, qkv: Tensor, cos_sin: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
        rows.rope_and_store(qkv, cos_sin, kv, batch, shape)
        return qkv

    def attention(self, q: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
        out = q.new_empty((q.shape[0], shape.num_heads * shape.head_dim))
        if batch.num_decodes:
            decode_attention(q, kv, batch, shape, out=out)
        if batch.num_decodes < len(batch.context_lens):
            prefill_attention(q, kv, batch, shape, out=out)
        return out

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        values, ids = logits.max(dim=-1)
        return values, ids


def _plain(weight: Linear) -> Tensor:
    assert isinstance(weight, PlainLinear)
    return weight.weight
