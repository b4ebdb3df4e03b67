"""From settings to a runner and a scheduler that fits it."""

from __future__ import annotations

import logging
import secrets

from tidewheel.engine.artifact import resolve_model
from tidewheel.engine.blocks import BlockPool, PrefixHasher
from tidewheel.engine.errors import StartError
from tidewheel.engine.faults import Faults
from tidewheel.engine.lanes import WaitingLanes
from tidewheel.engine.runner import Runner
from tidewheel.engine.scheduler import Limits, Scheduler
from tidewheel.engine.settings import Settings
from tidewheel.engine.tokenizer import ModelTokenizer

logger = logging.getLogger(__name__)


class SimulatedCrash(Exception):  # noqa: N818 - a death on request, not an error
    """--fault start-crash: the process ends with code 1."""


def build_runner(settings: Settings, faults: Faults) -> tuple[Runner, ModelTokenizer, str]:
    """The runner, its tokenizer, and the model's own name. Torch is imported for the torch runner only."""
    artifact = resolve_model(settings.model, sha256=settings.sha256, needs_file=settings.runner == "torch")
    if settings.runner == "torch":
        from tidewheel.engine.torch_start import start_torch

        runner, tokenizer = start_torch(artifact, settings)
        return runner, tokenizer, artifact.name
    from tidewheel.engine.simulated import StepTime, simulated_runner

    if faults.start_crash:
        raise SimulatedCrash
    step_time = StepTime.parse(settings.step_time)
    simulated, tokenizer = simulated_runner(settings, step_time=step_time, faults=faults)
    return simulated, tokenizer, f"simulated/{artifact.name}"


def build_scheduler(settings: Settings, runner: Runner) -> Scheduler:
    root = secrets.token_bytes(32) if settings.prefix_seed is None else settings.prefix_seed.encode()
    longest = settings.max_model_len or runner.max_model_len
    if longest > runner.max_model_len:
        raise StartError(f"--max-model-len {longest}: the model was made for {runner.max_model_len} tokens at most.")
    share = settings.max_kv_share_per_tenant
    if (floor := settings.lane_floor_share) * len(settings.lanes) >= 1:
        raise StartError(f"--lane-floor-share {floor}: {len(settings.lanes)} lanes cannot be owed that much each.")
    scheduler = Scheduler(
        pool=BlockPool(
            num_blocks=runner.num_blocks, block_size=settings.block_size, caches_prefixes=settings.prefix_caching
        ),
        hasher=PrefixHasher(root=root, block_size=settings.block_size),
        lanes=WaitingLanes(settings.lanes, max_wait=settings.lane_max_wait, floor_share=settings.lane_floor_share),
        limits=Limits(
            max_model_len=longest,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_waiting=settings.max_waiting,
            seconds_per_token=settings.tpot_target or None,
            max_seqs_per_tenant=settings.max_seqs_per_tenant,
            max_blocks_per_tenant=None if share is None else max(1, int(share * runner.num_blocks)),
        ),
    )
    asked = scheduler.limits.max_model_len
    if scheduler.max_model_len < asked:
        logger.warning(
            "the KV pool holds fewer tokens than the model's context; requests are limited to the pool",
            extra={"max_model_len": scheduler.max_model_len, "model_context": asked},
        )
    return scheduler
