"""bench/gpu runs on a GPU only now and then; here its scripts run in small, on the CPU, so that they do not rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.component
@pytest.mark.parametrize("script", ["correctness", "attention", "streams"])
def test_the_script_runs_in_small_on_a_cpu(script: str) -> None:
    command = [sys.executable, "-m", f"bench.gpu.{script}", "--device", "cpu", "--small"]
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[1]["gpu"] == "no GPU"
    assert len(lines) > 3
    assert all(line.keys() >= {"bench", "case", "metric", "value", "unit"} for line in lines[2:])
