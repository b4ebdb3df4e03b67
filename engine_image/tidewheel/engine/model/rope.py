"""Rotary positions: the frequencies of a model, stretched as its long-context training asks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tidewheel.engine.model.config import LinearRope, Llama3Rope, ModelConfig, RopeDivisors


def rope_table(config: ModelConfig) -> Tensor:
    """float32 [positions, head_dim]: the cosines of head_dim / 2 frequencies, then the sines."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    match config.rope_scaling:
        case Llama3Rope() as scaling:
            frequencies = _stretch(frequencies, scaling)
        case LinearRope(factor):
            frequencies = frequencies / factor
        case RopeDivisors(divisors):
            frequencies = frequencies / torch.tensor(divisors)
        case None:
            pass
    angles = torch.outer(torch.arange(config.max_position, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _stretch(frequencies: Tensor, scaling: Llama3Rope) -> Tensor:
    """Long waves are divided by the factor, short ones kept, those between are blended (Llama 3.1)."""
    wavelengths = 2 * math.pi / frequencies
    ratio = scaling.original_max_position / wavelengths
    blend = (ratio - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return frequencies / scaling.factor * (1 - blend) + frequencies * blend
