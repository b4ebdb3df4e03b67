"""Starting the torch runner: threads, weights, kernels."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tidewheel.engine.artifact import Artifact
from tidewheel.engine.errors import StartError
from tidewheel.engine.kernels.interface import Kernels, Shape
from tidewheel.engine.kernels.reference import ReferenceKernels
from tidewheel.engine.model.checkpoint import load_checkpoint
from tidewheel.engine.model.config import ModelConfig
from tidewheel.engine.model.llama import Llama
from tidewheel.engine.model.shards import Shards
from tidewheel.engine.parallel import Alone, Group, ProcessGroup
from tidewheel.engine.settings import Settings, available_cores, available_memory
from tidewheel.engine.tokenizer import ModelTokenizer
from tidewheel.engine.torch_followers import Followers, device_of
from tidewheel.engine.torch_runner import TorchRunner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's share of a model, loaded; alone it is all of it."""

    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: ModelTokenizer
    kernels: Kernels
    shape: Shape
    device: torch.device
    dtype: torch.dtype

    def runner(self, group: Group, settings: Settings) -> TorchRunner:
        model = Llama(self.config, self.weights, kernels=self.kernels, shape=self.shape, group=group)
        _return_freed_memory()
        runner = TorchRunner(
            model, kernels=self.kernels, dtype=self.dtype, device=self.device, kv_memory=settings.kv_memory, group=group
        )
        if self.device.type == "cuda":
            runner.record_decodes()
        return runner


def start_torch(artifact: Artifact, settings: Settings) -> tuple[TorchRunner, ModelTokenizer]:
    _check_memory(settings)
    began = time.monotonic()
    followers = Followers(artifact, settings) if settings.tensor_parallel > 1 else None
    settings = replace(settings, device=device_of(settings, 0)) if followers else settings
    rank = load_rank(artifact, settings, rank=0)
    runner = rank.runner(_meet(followers, settings, rank.device), settings)
    fields = {
        "path": str(artifact.path),
        "seconds": round(time.monotonic() - began, 2),
        "dtype": settings.dtype,
        "threads": _num_threads(settings),
        "kernels": rank.kernels.name,
        "tensor_parallel": settings.tensor_parallel,
    }
    logger.info("model loaded", extra=fields)
    return runner, rank.tokenizer


def load_rank(artifact: Artifact, settings: Settings, *, rank: int) -> Rank:
    assert artifact.path is not None
    torch.set_num_threads(_num_threads(settings))
    try:
        device = torch.device(settings.device)
        torch.empty(1, device=device)
    except RuntimeError as error:
        raise StartError(f"--device {settings.device}: torch cannot use it ({str(error).splitlines()[0]}).") from error
    dtype: torch.dtype = getattr(torch, settings.dtype)
    shards = Shards(rank, settings.tensor_parallel)
    checkpoint = load_checkpoint(artifact.path, dtype=dtype, shards=shards)
    config = checkpoint.config
    if config.max_exact_len < config.max_position:
        logger.warning(
            "the model attends to a sliding window; requests are limited to it, where its attention is exact",
            extra={"sliding_window": config.sliding_window, "model_context": config.max_position},
        )
    shards.check(
        num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, intermediate_size=config.intermediate_size
    )
    heads, kv_heads = config.num_heads // shards.size, config.num_kv_heads // shards.size
    shape = Shape(heads, kv_heads, config.head_dim, settings.block_size)
    kernels = choose_kernels(settings, dtype, device, shape)
    weights = checkpoint.weights
    for name in weights:
        weights[name] = weights[name].to(device)
    return Rank(config, weights, checkpoint.tokenizer, kernels, shape, device, dtype)


def _num_threads(settings: Settings) -> int:
    return settings.threads or max(1, available_cores() // settings.tensor_parallel)


def _meet(followers: Followers | None, settings: Settings, device: torch.device) -> Group:
    if followers is None:
        return Alone()
    followers.until_loaded()
    return ProcessGroup(
        rank=0,
        size=settings.tensor_parallel,
        meeting_point=followers.meeting_point,
        device=device,
        on_close=followers.join,
    )


def _check_memory(settings: Settings) -> None:
    """Linux gives out memory that it does not have and kills the process later, in the middle of somebody's reply."""
    available = available_memory() if settings.device == "cpu" else None
    if available is not None and settings.kv_memory > available:
        raise StartError(
            f"--kv-memory {settings.kv_memory}: only {available} bytes of memory are left here; lower it or give more."
        )


def _return_freed_memory() -> None:
    """Loading leaves hundreds of MB in the C library's free lists; a pod's memory limit counts them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def choose_kernels(settings: Settings, dtype: torch.dtype, device: torch.device, shape: Shape) -> Kernels:
    """Triton on CUDA, our C++ for bfloat16 on CPUs that multiply it, plain torch elsewhere or on request."""
    if settings.kernels == "auto" and device.type == "cuda":
        from tidewheel.engine.kernels.cuda.kernels import TritonKernels

        return TritonKernels()
    if settings.kernels == "reference" or device.type != "cpu" or dtype != torch.bfloat16:
        return ReferenceKernels()
    from tidewheel.engine.kernels.cpu.kernels import CpuKernels, reason_not_to_take, reason_not_to_use

    if reason := reason_not_to_use() or reason_not_to_take(shape):
        logger.warning("the C++ kernels are not used, plain torch computes instead: %s", reason)
        return ReferenceKernels()
    kernels = CpuKernels(threads=torch.get_num_threads())
    # What is left to torch is short, and its threads would spin on the cores that ours compute on.
    torch.set_num_threads(1)
    return kernels
