"""A Llama-family decoder in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Llama 3.1's stretching of low rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Positions divided by a factor (Llama 2's long-context fine-tunes)."""

    factor: float


@dataclass(frozen=True, slots=True)
class RopeDivisors:
    """One divisor per frequency, as GGUF files of Llama 3.1 carry them."""

    divisors: tuple[float, ...]


RopeScaling = Llama3Rope | LinearRope | RopeDivisors


@dataclass(frozen=True, slots=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position: int
    rope_scaling: RopeScaling | None = None
    has_qkv_bias: bool = False  # Qwen2
    has_head_norms: bool = False  # Qwen3: each head of q and k is normalised before it is turned
    sliding_window: int | None = None  # tokens that attention sees; None: all

    @property
    def max_exact_len(self) -> int:
        """Up to the sliding window, attention over everything is what the model was trained with; beyond, it is not."""
        return min(self.max_position, self.sliding_window or self.max_position)
