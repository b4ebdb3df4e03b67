"""Demand made for tests: a daily wave with noise, seeded."""

import numpy as np
from numpy.typing import NDArray


def wave(
    days: float, *, step_seconds: int = 600, noise: float = 0.05, low: float = 10.0, high: float = 40.0, seed: int = 1
) -> NDArray[np.float64]:
    """A sine with its trough at midnight."""
    per_day = 86_400 // step_seconds
    buckets = np.arange(int(days * per_day))
    shape = 0.5 - 0.5 * np.cos(2 * np.pi * buckets / per_day)
    factor = np.exp(np.random.default_rng(seed).normal(0.0, noise, buckets.size))
    return (low + (high - low) * shape) * factor
