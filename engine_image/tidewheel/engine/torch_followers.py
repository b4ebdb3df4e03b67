"""The other ranks of a tensor-parallel engine: processes that load their share of the weights and follow rank 0."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from tidewheel.engine.artifact import Artifact
from tidewheel.engine.errors import StartError
from tidewheel.engine.settings import Settings

logger = logging.getLogger(__name__)


class Followers:
    """Started before rank 0 loads its own weights, so that all load at the same time."""

    def __init__(self, artifact: Artifact, settings: Settings) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidewheel-ranks-")
        self.meeting_point = str(Path(self._folder.name) / "meeting")
        context = multiprocessing.get_context("spawn")
        self._processes: list[tuple[SpawnProcess, Connection]] = []
        for rank in range(1, settings.tensor_parallel):
            ours, theirs = context.Pipe()
            arguments = (artifact, settings, rank, self.meeting_point, theirs)
            process = context.Process(target=_follow, args=arguments, daemon=True, name=f"rank-{rank}")
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def until_loaded(self) -> None:
        """Raises StartError if one of them could not load; meeting it would wait for ever."""
        for rank, (process, connection) in enumerate(self._processes, start=1):
            try:
                problem: str | None = connection.recv()
            except EOFError:
                process.join(1)
                problem = f"it ended with code {process.exitcode}; see its own messages above"
            if problem is not None:
                raise StartError(f"--tensor-parallel: rank {rank} could not start: {problem}")

    def join(self) -> None:
        for process, connection in self._processes:
            connection.close()
            process.join(10)
        self._folder.cleanup()


def _follow(artifact: Artifact, settings: Settings, rank: int, meeting_point: str, parent: Connection) -> None:
    from tidewheel.engine.parallel import ProcessGroup
    from tidewheel.engine.torch_start import load_rank

    try:
        rank_of_model = load_rank(artifact, replace(settings, device=device_of(settings, rank)), rank=rank)
    except StartError as error:
        parent.send(str(error))
        return
    parent.send(None)
    group = ProcessGroup(
        rank=rank, size=settings.tensor_parallel, meeting_point=meeting_point, device=rank_of_model.device
    )
    runner = rank_of_model.runner(group, settings)
    while (step := group.receive()) is not None:
        runner.compute(*step)
    group.close()


def device_of(settings: Settings, rank: int) -> str:
    """One GPU a rank; CPUs are one device."""
    return f"cuda:{rank}" if settings.device.startswith("cuda") else settings.device
