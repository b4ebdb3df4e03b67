"""Tensor parallelism: one process a device, of which rank 0 schedules and samples and the others follow.

Every step goes from rank 0 to the followers as its batch, over gloo; the sums inside go over NCCL on GPUs, over gloo on
CPUs. A process that dies closes its connections, so that the next exchange of the others raises: the engine dies as a
whole and its pod is restarted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tidewheel.engine.kernels.interface import AttentionBatch

# A follower waits for the next step as long as the engine is idle; a dead peer is noticed by its closed connection.
_PATIENCE = timedelta(days=3650)


class Group(Protocol):
    size: int
    can_record: bool  # whether a recorded step may hold its sums

    def sum(self, x: Tensor) -> Tensor:
        """Of all ranks' tensors; may write into `x`."""
        ...

    def share(self, token_ids: Tensor, batch: AttentionBatch) -> None:
        """Rank 0: what the followers compute next."""
        ...

    def close(self) -> None: ...


class Alone:
    size = 1
    can_record = True

    def sum(self, x: Tensor) -> Tensor:
        return x

    def share(self, token_ids: Tensor, batch: AttentionBatch) -> None:
        pass

    def close(self) -> None:
        pass


class ProcessGroup:
    """`meeting_point`: a file that all ranks can reach and none has used before."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        meeting_point: str,
        device: torch.device,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.size = size
        self.can_record = device.type == "cuda"
        self._rank = rank
        self._device = device
        self._on_close = on_close
        if device.type == "cpu":
            os.environ.setdefault(
                "GLOO_SOCKET_IFNAME", "lo"
            )  # all ranks are here, whatever this host's name resolves to
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, init_method=f"file://{meeting_point}", rank=rank, world_size=size, timeout=_PATIENCE
        )

    def sum(self, x: Tensor) -> Tensor:
        # bf16 on the wire between GPUs, as everywhere; on CPUs the sum is worth its fp32.
        whole = x if self._device.type == "cuda" else x.float()
        dist.all_reduce(whole)
        return whole

    def share(self, token_ids: Tensor, batch: AttentionBatch) -> None:
        fields = [value.cpu() if isinstance(value, Tensor) else value for value in (token_ids, *_fields(batch))]
        dist.broadcast_object_list([fields], src=0, device=torch.device("cpu"))

    def receive(self) -> tuple[Tensor, AttentionBatch] | None:
        """A follower's next step; None when rank 0 has closed the group. Raises RuntimeError if rank 0 has died."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        if box[0] is None:
            return None
        token_ids, *fields = (value.to(self._device) if isinstance(value, Tensor) else value for value in box[0])
        return token_ids, AttentionBatch(*fields)  # type: ignore[arg-type]

    def close(self) -> None:
        if self._rank == 0:
            dist.broadcast_object_list([None], src=0, device=torch.device("cpu"))
        dist.destroy_process_group()
        self._on_close()


def _fields(batch: AttentionBatch) -> tuple[Any, ...]:
    return tuple(getattr(batch, name) for name in AttentionBatch.__dataclass_fields__)
