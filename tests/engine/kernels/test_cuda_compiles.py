"""What the interpreter does not see: types, shapes and shared memory, as the compiler for a real GPU judges them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SHARED_MEMORY = 227 << 10  # bytes that one program of a Hopper GPU may have


@pytest.mark.component
def test_every_kernel_compiles_for_a_hopper_gpu(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    program = Path(__file__).with_name("compile_for_gpu.py")
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kernels) == 8
    assert all(k["machine_code_bytes"] > 0 and k["shared"] <= _SHARED_MEMORY for k in kernels)
