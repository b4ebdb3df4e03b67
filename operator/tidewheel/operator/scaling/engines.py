"""What one engine of a version says of its limits: its own step times, its blocks, its streams."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from tidewheel.autoscaler.capacity import EngineReport, StepTimes
from tidewheel.autoscaler.units import BLOCK_TOKENS
from tidewheel.crds.names import ENGINE_PORT
from tidewheel.operator.planning.records import PodRecord
from tidewheel.operator.pod_http import engine_headers, pod_url


class EngineReader:
    """Asks ``/load`` of one ready replica per version: as many calls as versions, not as pods."""

    def __init__(self, *, token_file: Path | None, timeout_seconds: float, port: int = ENGINE_PORT) -> None:
        self._token_file = token_file
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._port = port

    async def read(self, pods: Mapping[str, PodRecord]) -> Mapping[str, EngineReport]:
        """By the key of ``pods``; an engine that does not answer is left out."""
        async with aiohttp.ClientSession(timeout=self._timeout) as session:
            found = await asyncio.gather(*(self._ask(session, pod) for pod in pods.values()))
        return {key: report for key, report in zip(pods, found, strict=True) if report is not None}

    async def _ask(self, session: aiohttp.ClientSession, pod: PodRecord) -> EngineReport | None:
        try:
            url = pod_url(pod.ip, self._port, "/load")
            async with session.get(url, headers=engine_headers(self._token_file)) as answer:
                answer.raise_for_status()
                return engine_report(await answer.json())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError):
            return None


def engine_report(load: Mapping[str, Any]) -> EngineReport:
    """From the body of ``/load``. Raises KeyError, TypeError or ValueError for one that is not an engine's."""
    fit = load.get("step_time_fit")
    steps = None
    if fit is not None:
        steps = StepTimes(
            base=float(fit["base"]),
            per_prefill_token=float(fit["per_prefill_token"]),
            per_decode=float(fit["per_decode"]),
            per_context_token=float(fit["per_context_token"]),
        )
    return EngineReport(
        kv_tokens=float(load["total_blocks"]) * float(load.get("block_size", BLOCK_TOKENS)),
        max_num_seqs=int(load["max_num_seqs"]),
        steps=steps,
        under_load=bool(load.get("running")),
    )
