"""Tests share the machine: one torch thread each, which for tiny tensors is also the fastest."""

from __future__ import annotations

import os

# Read once, when torch is first imported; the modules of this folder do that after this line.
os.environ.setdefault("OMP_NUM_THREADS", "1")
