"""Compile every Triton kernel to machine code for a Hopper GPU, which needs no GPU; prints one JSON line per kernel.

A program of its own: in a test process the kernels may have been defined for the interpreter.
"""

from __future__ import annotations

import json
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tidewheel.engine.kernels.cuda import decode, prefill, rows

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {"cos_sin_ptr": "*fp32", "partial_ptr": "*fp32", "lse_ptr": "*fp32"}
INDICES = {"tables_ptr", "lens_ptr", "starts_ptr"}


def argument_type(name: str) -> str:
    if name in ("positions_ptr", "slots_ptr"):
        return "*i64"
    if name in INDICES:
        return "*i32"
    if name.endswith("_ptr"):
        return POINTERS.get(name, "*bf16")
    return "fp32" if name in ("scale", "eps") else "i32"


def compile_kernel(function: Any, **constants: int) -> None:
    names = function.arg_names
    types = {name: "constexpr" if name in constants else argument_type(name) for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    kernel = triton.compile(ASTSource(function, signature=types, constexprs=values), target=HOPPER)
    made = {"kernel": function.fn.__name__, **constants, "shared": kernel.metadata.shared}
    print(json.dumps({**made, "machine_code_bytes": len(kernel.asm["cubin"])}))


def main() -> None:
    for head_dim, group in ((80, 7), (128, 8)):
        dims = {"GROUP": group, "D": head_dim, "D_PADDED": triton.next_power_of_2(head_dim), "PAGE": 16, "UPCAST": 0}
        compile_kernel(decode._attend_split, M=16, TILE=16, **dims)
        compile_kernel(prefill._attend_chunks, M=64, QUERIES=64 // group, TILE=32, **dims)
    compile_kernel(decode._merge_splits, D=128, D_PADDED=128, SPLITS=16)
    compile_kernel(rows._rms_norm, BLOCK=4096)
    compile_kernel(rows._silu_mul, BLOCK=1024)
    compile_kernel(rows._rope_and_store, D=128, HALF_PADDED=64, PAGE=16)


if __name__ == "__main__":
    main()
