"""What engines are doing: their ``/load`` is asked while it matters, beside the workers, which never wait for a pod."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from tidewheel.crds.names import ENGINE_PORT
from tidewheel.operator.planning.records import LoadReading, ModelKey, PodRecord
from tidewheel.operator.pod_http import engine_headers, pod_url
from tidewheel.operator.tasks import KeyedTasks

_LOG: Final = logging.getLogger(__name__)


class LoadMonitor:
    """Asks the engines of the pods given last for each model. ``on_change`` is called when a reading matters."""

    def __init__(
        self,
        *,
        token_file: Path | None,
        poll_seconds: float,
        timeout_seconds: float,
        propagation_seconds: float,
        now: Callable[[], datetime],
        on_change: Callable[[ModelKey], None],
        port: int = ENGINE_PORT,
    ) -> None:
        self._token_file = token_file
        self._poll_seconds = poll_seconds
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._propagation = timedelta(seconds=propagation_seconds)
        self._now = now
        self._on_change = on_change
        self._port = port
        self._pods: dict[str, PodRecord] = {}
        self._tasks: KeyedTasks[str] = KeyedTasks()
        self._readings: dict[str, LoadReading] = {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def readings(self) -> Mapping[str, LoadReading]:
        """The last answer of each engine that is asked, by the pod's uid."""
        return self._readings

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()
        if self._session is not None:
            await self._session.close()

    def follow(self, key: ModelKey, pods: Iterable[PodRecord]) -> None:
        """From now on ask exactly these pods of this model."""
        wanted = {pod.meta.uid: pod for pod in pods}
        for uid in [uid for uid, pod in self._pods.items() if pod.key == key and uid not in wanted]:
            del self._pods[uid]
            self._readings.pop(uid, None)
            self._tasks.stop(uid)
        for uid, pod in wanted.items():
            self._pods[uid] = pod
            if not self._tasks.is_running(uid):
                self._tasks.start(uid, self._ask_again_and_again(uid), name=f"load of {pod.meta.name}")

    async def _ask_again_and_again(self, uid: str) -> None:
        while True:
            before = self._readings.get(uid)
            pod = self._pods[uid]
            self._readings[uid] = after = await self._ask(pod)
            if before is None or _matters(before, after):
                self._on_change(pod.key)
            await asyncio.sleep(self._poll_seconds)

    async def _ask(self, pod: PodRecord) -> LoadReading:
        """Unknown is not idle: an engine that does not answer as expected has an unknown number of streams."""
        at = self._now()
        try:
            load = await self._call("GET", pod, "/load")
            draining = bool(load.get("draining"))
            if not draining and self._is_told(pod, at):
                # New work is refused from here on, with a hint to try elsewhere, so that idle stays idle.
                draining = bool((await self._call("POST", pod, "/drain")).get("draining"))
                load = await self._call("GET", pod, "/load")
            oldest = load.get("oldest_stream_seconds")
            return LoadReading(
                at=at,
                streams=int(load["running"]) + int(load["waiting"]),
                draining=draining,
                oldest_stream_seconds=None if oldest is None else float(oldest),
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            _LOG.info("load of pod %s is unknown: %r", pod.meta.name, error)
            return LoadReading(at=at, streams=None)

    def _is_told(self, pod: PodRecord, at: datetime) -> bool:
        """Whether every gateway has had time to see that the pod's gate is closed."""
        began = pod.gate.since if pod.gate is not None and pod.is_draining else None
        return began is not None and at >= began + self._propagation

    async def _call(self, method: str, pod: PodRecord, path: str) -> dict[str, Any]:
        assert self._session is not None
        url, headers = pod_url(pod.ip, self._port, path), engine_headers(self._token_file)
        async with self._session.request(method, url, headers=headers) as answer:
            answer.raise_for_status()
            body = await answer.json()
        if not isinstance(body, dict):
            raise TypeError(f"{path} answered no object")
        return body


def _matters(before: LoadReading, after: LoadReading) -> bool:
    return (before.streams == 0) != (after.streams == 0) or before.draining != after.draining
