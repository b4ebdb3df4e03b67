"""What the launchers know about where they run."""

from __future__ import annotations

import os
from functools import cache

import torch

# Triton's interpreter multiplies bf16 operands of tl.dot wrongly and without a word, so they are widened there.
UPCAST = os.environ.get("TRITON_INTERPRET") == "1"


@cache
def num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
