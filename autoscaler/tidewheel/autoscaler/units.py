"""The units that capacity is bought in: a version needs the most that any of them asks for, never their sum."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BLOCK_TOKENS: Final = 16


class Unit(StrEnum):
    """What runs out first."""

    PREFILL = "prefill tok/s"
    DECODE = "decode tok/s"
    KV_BLOCKS = "KV blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Offered load at one moment or in one bucket."""

    prefill: float
    """Input tokens a second that must be computed: offered ones less the share that prefix caches hit."""
    decode: float
    """Output tokens a second."""
    kv_blocks: float
    """Blocks that the streams in flight hold at the SLO's decode speed, not at the overloaded present's."""

    def of(self, unit: Unit) -> float:
        """One unit's part."""
        return {Unit.PREFILL: self.prefill, Unit.DECODE: self.decode, Unit.KV_BLOCKS: self.kv_blocks}[unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What requests look like lately, to turn token rates into blocks (A03, A04)."""

    prompt_tokens: float
    """Mean prompt of a request."""
    output_tokens: float
    """Mean reply of a request."""
    output_tokens_p90: float | None = None
    """Long replies hold blocks for long; without it the mean is taken half longer."""
    cached_share: float = 0.0
    """A low percentile of the recent prefix-hit share."""


def demand_from_rates(
    *, prompt_rate: float, output_rate: float, mix: Mix, tpot_seconds: float, ttft_seconds: float
) -> Demand:
    """Offered token rates in the three units; blocks by Little's law: arrivals x residence x blocks of a request."""
    arrivals = output_rate / mix.output_tokens if mix.output_tokens > 0 else 0.0
    if arrivals == 0 and mix.prompt_tokens > 0:
        arrivals = prompt_rate / mix.prompt_tokens
    long_reply = mix.output_tokens_p90 if mix.output_tokens_p90 is not None else 1.5 * mix.output_tokens
    residence = ttft_seconds + long_reply * tpot_seconds
    blocks = (mix.prompt_tokens + 0.5 * long_reply) / BLOCK_TOKENS + 1.0
    return Demand(
        prefill=prompt_rate * (1.0 - mix.cached_share), decode=output_rate, kv_blocks=arrivals * residence * blocks
    )


def with_open_requests(demand: Demand, in_flight: float, *, mix: Mix, tpot_seconds: float) -> Demand:
    """Never less than what requests open now ask for: each a token every ``tpot_seconds``, and its blocks.

    Rates count tokens when a reply ends. While long replies are open, or a queue grows, they say too little.
    """
    blocks = (mix.prompt_tokens + 0.5 * mix.output_tokens) / BLOCK_TOKENS + 1.0
    return Demand(
        prefill=demand.prefill,
        decode=max(demand.decode, in_flight / tpot_seconds),
        kv_blocks=max(demand.kv_blocks, in_flight * blocks),
    )
