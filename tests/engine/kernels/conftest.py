"""Triton's interpreter must be chosen before Triton is imported anywhere in the process."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
