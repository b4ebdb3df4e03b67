"""What one replica carries within its SLO: from the shape of the model, from the engine's own benchmark, measured."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidewheel.autoscaler.units import BLOCK_TOKENS, Unit

SAFE_SHARE: Final = 0.85
"""Of what a replica can do at its SLO on average, so that the p99 and a burst within a bucket fit."""
PRIOR_SHARE: Final = 0.5
"""Of the roofline, before anything was measured."""


class CapacitySource(StrEnum):
    """Where the figures come from, the best last."""

    PRIOR = "prior"
    SELF_BENCHMARK = "self-benchmark"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCapacity:
    """Safe capacity of a replica at its SLO."""

    prefill: float
    decode: float
    kv_tokens: float
    max_streams: int
    source: CapacitySource

    def of(self, unit: Unit) -> float:
        """One unit's part."""
        blocks = self.kv_tokens / BLOCK_TOKENS
        return {Unit.PREFILL: self.prefill, Unit.DECODE: self.decode, Unit.KV_BLOCKS: blocks}[unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The engine's fit: seconds of a step = base + a x prefill tokens + b x decodes + c x tokens attended to."""

    base: float
    per_prefill_token: float
    per_decode: float
    per_context_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What an engine's ``/load`` says of its limits."""

    kv_tokens: float
    max_num_seqs: int
    steps: StepTimes | None
    under_load: bool = False
    """The fit comes from users' steps, not only from the warm-up."""


def capacity_from_report(
    report: EngineReport, *, tpot_seconds: float, context_tokens: float, prompt_per_output: float
) -> ReplicaCapacity | None:
    """From the engine's own step times; None before there is a fit.

    Prefill is interleaved: each decoded token brings ``prompt_per_output`` tokens of prefill with it, and the step
    that holds both must stay within the SLO. So neither figure assumes that the other's work stands still.
    """
    steps = report.steps
    if steps is None or report.kv_tokens <= 0:
        return None
    each = steps.per_decode + steps.per_context_token * context_tokens + steps.per_prefill_token * prompt_per_output
    room = tpot_seconds - steps.base
    by_time = room / each if each > 0 else float(report.max_num_seqs)
    by_memory = report.kv_tokens / max(context_tokens, 1.0)
    streams = max(1.0, min(by_time, float(report.max_num_seqs), by_memory))
    step = steps.base + each * streams
    decode = streams / step if step > 0 else streams / tpot_seconds
    chunk = 512.0
    alone = chunk / (steps.base + steps.per_prefill_token * chunk) if steps.base + steps.per_prefill_token > 0 else 1e9
    prefill = decode * prompt_per_output if prompt_per_output > 0 else alone
    return ReplicaCapacity(
        prefill=SAFE_SHARE * min(prefill, alone),
        decode=SAFE_SHARE * decode,
        kv_tokens=SAFE_SHARE * report.kv_tokens,
        max_streams=int(streams),
        source=CapacitySource.MEASURED if report.under_load else CapacitySource.SELF_BENCHMARK,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is known of a replica before it runs: bytes of weights, and its hardware."""

    weight_bytes: float
    kv_bytes_per_token: float
    memory_bytes: float
    bandwidth: float
    flops: float


def capacity_from_shape(shape: Shape, *, tpot_seconds: float, context_tokens: float) -> ReplicaCapacity:
    """The roofline: a decode step reads all weights and all KV once; every token takes 2 FLOP a parameter.

    ``weight_bytes`` are taken for two bytes a parameter. The half of it is believed until something was measured.
    """
    room = max(0.9 * shape.memory_bytes - shape.weight_bytes, shape.kv_bytes_per_token * context_tokens)
    by_memory = room / (shape.kv_bytes_per_token * context_tokens)
    readable = tpot_seconds * shape.bandwidth * PRIOR_SHARE - shape.weight_bytes
    by_time = readable / (shape.kv_bytes_per_token * context_tokens)
    by_compute = tpot_seconds * PRIOR_SHARE * shape.flops / shape.weight_bytes
    streams = max(1.0, min(by_memory, by_time, by_compute))
    read = (shape.weight_bytes + streams * shape.kv_bytes_per_token * context_tokens) / shape.bandwidth
    step = max(read, streams * shape.weight_bytes / shape.flops)
    return ReplicaCapacity(
        prefill=PRIOR_SHARE * shape.flops / shape.weight_bytes,
        decode=PRIOR_SHARE * streams / step,
        kv_tokens=PRIOR_SHARE * room / shape.kv_bytes_per_token,
        max_streams=int(streams),
        source=CapacitySource.PRIOR,
    )
