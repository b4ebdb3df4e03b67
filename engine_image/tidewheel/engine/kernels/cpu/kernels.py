"""The decoder's operations on CPUs, called through ctypes: 1 µs a call, where a torch operator costs 5."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

from tidewheel.engine.kernels.cpu.build import INSTRUCTION_SETS, BuildError, best_instruction_set, find_or_build
from tidewheel.engine.kernels.cpu.memory import Arena, zeros_in_huge_pages
from tidewheel.engine.kernels.interface import AttentionBatch, HeadAdjustment, Linear, Shape

_NAMES = {"amx": "cpu-bf16-amx", "avx512": "cpu-bf16", "avx2": "cpu-bf16-avx2"}
_PAGE, _MAX_GROUP, _MAX_DIM = 16, 32, 256  # PAGE, MAX_ROWS and MAX_DIM in C++

_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def _struct(name: str, pointers: str, integers: str, floats: str = "") -> type[ctypes.Structure]:
    """The C struct `name`: its fields in C++'s order, which is pointers, integers, floats throughout."""
    fields = [(f, kind) for kind, names in ((_P, pointers), (_I, integers), (_F, floats)) for f in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_Linear = _struct("Linear", "x weight residual out", "rows n k x_stride silu_mul residual_fp32 out_fp32")
_Pack = _struct("Pack", "rows panels", "n k gate_up")
_Gather = _struct("Gather", "table ids out", "rows row_bytes")
_Norm = _struct("Norm", "x weight out", "rows width x_fp32", "eps")
_Argmax = _struct("Argmax", "logits values ids", "rows width")
_AdjustHeads = _struct("AdjustHeads", "qkv bias q_norm k_norm", "rows heads kv_heads head_dim", "eps")
_RopeStore = _struct("RopeStore", "qkv cache cos_sin positions slots", "rows heads kv_heads head_dim")
_Attention = _struct(
    "Attention",
    "q cache block_tables query_starts context_lens out",
    "sequences heads kv_heads head_dim table_stride q_stride",
    "scale",
)


_Kernel: TypeAlias = "ctypes._NamedFuncPointer"


@dataclass(frozen=True, slots=True)
class PanelLinear:
    """A weight in panels of 32 outputs; a gate_up weight has 16 rows of each in a panel."""

    panels: Tensor
    num_outputs: int
    num_inputs: int


@cache
def _library() -> ctypes.CDLL:
    instructions = best_instruction_set()
    if instructions is None:
        raise BuildError(f"this CPU has none of {', '.join(INSTRUCTION_SETS)}")
    library = ctypes.CDLL(str(find_or_build(instructions)))
    library.tw_set_threads.argtypes = [_I]
    library.tw_replay.argtypes, library.tw_replay.restype = [_P, _I], None
    return library


def reason_not_to_use() -> str | None:
    """None where the kernels can run, compiled if need be; else a sentence that says why not."""
    try:
        _library()
    except (BuildError, OSError) as error:
        return str(error)
    return None


def reason_not_to_take(shape: Shape) -> str | None:
    if shape.block_size != _PAGE:
        return f"they take KV blocks of {_PAGE} tokens, not {shape.block_size}"
    if shape.head_dim % 16 or shape.head_dim > _MAX_DIM:
        return f"they take a head_dim in steps of 16 up to {_MAX_DIM}, not {shape.head_dim}"
    if shape.num_heads > _MAX_GROUP * shape.num_kv_heads:
        return f"they take up to {_MAX_GROUP} query heads for a KV head"
    return None


class CpuRecording:
    """A step as an array of (function, arguments) in C."""

    def __init__(self, calls: list[tuple[_Kernel, ctypes.Structure]], output: Tensor, held: list[Tensor]) -> None:
        self.output = output
        self._alive = (calls, held)
        pairs = [(ctypes.cast(kernel, _P).value, ctypes.addressof(arguments)) for kernel, arguments in calls]
        self._calls = (_P * (2 * len(pairs)))(*(value for pair in pairs for value in pair))
        self._count = len(pairs)

    def replay(self) -> None:
        _library().tw_replay(self._calls, self._count)


class CpuKernels:
    """Operands of bf16, sums of fp32. The residual stream and the logits stay fp32, which halves the error of a model.

    The number of threads is the process's, not the instance's; one thread at a time may call.
    """

    recorded_sizes: tuple[int, ...] = tuple(range(1, 33))  # beyond, Python's share of a step is below 2 %

    def __init__(self, *, threads: int) -> None:
        library = _library()
        library.tw_set_threads(threads)
        self.name = _NAMES[str(best_instruction_set())]
        self._arena = Arena()
        self._buffers: dict[tuple[str, int, torch.dtype], Tensor] = {}
        self._calls: list[tuple[_Kernel, ctypes.Structure]] | None = None
        self._held: list[Tensor] = []
        self._adjust_heads = _kernel(library, "adjust_heads")
        names = ("linear", "pack", "gather", "rms_norm", "argmax", "rope_store", "attention")
        self._linear, self._pack, self._gather, self._norm, self._argmax, self._rope_store, self._attention = (
            _kernel(library, name) for name in names
        )

    def record(self, run: Callable[[], Tensor]) -> CpuRecording:
        self._calls, self._held = [], []
        try:
            output = run()
            return CpuRecording(self._calls, output, self._held)
        finally:
            self._calls, self._held = None, []

    def pack(self, weight: Tensor) -> PanelLinear:
        return self._panels(weight, gate_up=False)

    def pack_gate_up(self, gate: Tensor, up: Tensor) -> PanelLinear:
        return self._panels(torch.cat([gate, up]), gate_up=True)

    def linear(self, x: Tensor, weight: Linear) -> Tensor:
        return self._multiply(x, weight, self._empty("linear", len(x), _panel(weight).num_outputs))

    def logits(self, x: Tensor, weight: Linear) -> Tensor:
        out = self._empty("logits", len(x), _panel(weight).num_outputs, torch.float32)
        return self._multiply(x, weight, out)

    def linear_add(self, x: Tensor, weight: Linear, residual: Tensor) -> Tensor:
        # The first of a step gets the embedding in bf16, all others what the one before them returned.
        out = residual
        if residual.dtype != torch.float32:
            out = self._empty("linear_add", len(x), residual.shape[1], torch.float32)
        return self._multiply(x, weight, out, residual=residual)

    def gate_up(self, x: Tensor, weight: Linear) -> Tensor:
        out = self._empty("gate_up", len(x), _panel(weight).num_outputs // 2)
        return self._multiply(x, weight, out, silu_mul=True)

    def rows(self, table: Tensor, ids: Tensor) -> Tensor:
        out = self._empty("rows", len(ids), table.shape[1], table.dtype)
        row_bytes = table.shape[1] * table.element_size()
        self._call(self._gather, _Gather(table.data_ptr(), ids.data_ptr(), out.data_ptr(), len(ids), row_bytes))
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = self._empty("rms_norm", len(x), x.shape[1])
        is_fp32 = x.dtype == torch.float32
        call = _Norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], is_fp32, eps)
        self._call(self._norm, call)
        return out

    def adjust_heads(self, qkv: Tensor, adjustment: HeadAdjustment, shape: Shape) -> Tensor:
        bias, q_norm, k_norm = (
            None if weight is None else weight.data_ptr()
            for weight in (adjustment.bias, adjustment.q_norm, adjustment.k_norm)
        )
        call = _AdjustHeads(
            qkv.data_ptr(), bias, q_norm, k_norm, qkv.shape[0], shape.num_heads, shape.num_kv_heads, shape.head_dim,
            adjustment.eps,
        )  # fmt: skip
        self._call(self._adjust_heads, call)
        return qkv

    def allocate_kv(self, num_blocks: int, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor:
        """[blocks, kv heads, K and V, 16 * D]: a page of K beside its page of V, both as vdpbf16ps reads them."""
        reason = reason_not_to_take(shape)
        if reason is not None:
            raise ValueError(f"The C++ kernels cannot hold this model's KV: {reason}; start with --kernels reference.")
        size = (num_blocks, shape.num_kv_heads, 2, _PAGE * shape.head_dim)
        return zeros_in_huge_pages(2 * math.prod(size)).view(torch.bfloat16).view(size)

    def rope_and_store(self, qkv: Tensor, cos_sin: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
        call = _RopeStore(
            qkv.data_ptr(), kv.data_ptr(), cos_sin.data_ptr(), batch.positions.data_ptr(), batch.slots.data_ptr(),
            qkv.shape[0], shape.num_heads, shape.num_kv_heads, shape.head_dim,
        )  # fmt: skip
        self._call(self._rope_store, call)
        return qkv

    def attention(self, q: Tensor, kv: Tensor, batch: AttentionBatch, shape: Shape) -> Tensor:
        """`q` may be the whole qkv: only the first num_heads * head_dim of each row are read."""
        out = self._empty("attention", len(q), shape.num_heads * shape.head_dim)
        call = _Attention(
            q.data_ptr(), kv.data_ptr(), batch.block_tables.data_ptr(), batch.query_starts.data_ptr(),
            batch.context_lens.data_ptr(), out.data_ptr(), batch.context_lens.shape[0], shape.num_heads,
            shape.num_kv_heads, shape.head_dim, batch.block_tables.stride(0), q.stride(0), shape.head_dim**-0.5,
        )  # fmt: skip
        self._call(self._attention, call)
        return out

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits.float().contiguous()
        values, ids = torch.empty(len(logits)), torch.empty(len(logits), dtype=torch.int64)
        call = _Argmax(logits.data_ptr(), values.data_ptr(), ids.data_ptr(), logits.shape[0], logits.shape[1])
        self._argmax(ctypes.byref(call))
        return values, ids

    def _panels(self, weight: Tensor, *, gate_up: bool) -> PanelLinear:
        outputs, inputs = weight.shape
        if inputs % 2:
            raise ValueError(f"A weight with {inputs} inputs cannot be packed: bf16 is multiplied in pairs.")
        panels = -(-outputs // 2 // 16) if gate_up else -(-outputs // 32)
        rows = weight.contiguous()
        data = self._arena.take(panels * inputs * 32 * 2).view(torch.bfloat16)
        self._pack(ctypes.byref(_Pack(rows.data_ptr(), data.data_ptr(), outputs, inputs, gate_up)))
        return PanelLinear(data, outputs, inputs)

    def _multiply(
        self, x: Tensor, weight: Linear, out: Tensor, *, residual: Tensor | None = None, silu_mul: bool = False
    ) -> Tensor:
        panel = _panel(weight)
        call = _Linear(
            x.data_ptr(), panel.panels.data_ptr(), None if residual is None else residual.data_ptr(), out.data_ptr(),
            x.shape[0], panel.num_outputs, panel.num_inputs, x.stride(0), silu_mul,
            residual is not None and residual.dtype == torch.float32, out.dtype == torch.float32,
        )  # fmt: skip
        self._call(self._linear, call)
        return out

    def _call(self, kernel: _Kernel, arguments: ctypes.Structure) -> None:
        kernel(ctypes.byref(arguments))
        if self._calls is not None:
            self._calls.append((kernel, arguments))

    def _empty(self, operation: str, rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """A new tensor; in a recording, the operation's buffer: a result lives until the same operation runs again."""
        if self._calls is None:
            return torch.empty((rows, width), dtype=dtype)
        key = (operation, width, dtype)
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < rows:
            buffer = self._buffers[key] = torch.empty((max(rows, self.recorded_sizes[-1]), width), dtype=dtype)
        self._held.append(buffer)
        return buffer[:rows]


def _kernel(library: ctypes.CDLL, name: str) -> _Kernel:
    function = library["tw_" + name]
    function.argtypes, function.restype = [_P], None
    return function


def _panel(weight: Linear) -> PanelLinear:
    assert isinstance(weight, PanelLinear)
    return weight
