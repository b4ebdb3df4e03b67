"""Which gateways are ready, and which generation of a table each of them obeys: asked beside the workers."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from tidewheel.clients.errors import ClientsError
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import ENDPOINT_SLICES, KubeObject
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.planning.rollouts.evidence import ConfirmationOrder
from tidewheel.operator.pod_http import pod_url
from tidewheel.operator.tasks import KeyedTasks

_LOG: Final = logging.getLogger(__name__)
_SERVICE_LABEL: Final = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """``service`` in ``namespace`` has the gateways' admin ports. Times in seconds."""

    namespace: str
    service: str
    port: int
    timeout_seconds: float
    poll_seconds: float
    """Between looks while some gateway has not confirmed."""
    settled_seconds: float
    """Between looks once all have."""


class Gateways:
    """The ready gateways, by name, with their addresses; listed at most once per ``poll_seconds``."""

    def __init__(self, client: KubeClient, settings: GatewaySettings, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._listed: Mapping[str, str] = {}
        self._at = float("-inf")
        self._lock = asyncio.Lock()

    async def ready(self) -> Mapping[str, str]:
        """Raises ClientsError."""
        async with self._lock:
            if self._clock() - self._at >= self._settings.poll_seconds:
                found = await self._client.list(
                    ENDPOINT_SLICES,
                    self._settings.namespace,
                    label_selector=f"{_SERVICE_LABEL}={self._settings.service}",
                )
                self._listed, self._at = ready_endpoints(found.items), self._clock()
            return self._listed


def ready_endpoints(slices: list[KubeObject]) -> dict[str, str]:
    """Name of the pod, and its address; one that is about to go need not confirm anything."""
    found = {}
    for item in slices:
        for endpoint in item.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            if conditions.get("ready") is False or conditions.get("terminating") or not endpoint.get("addresses"):
                continue
            address = endpoint["addresses"][0]
            found[(endpoint.get("targetRef") or {}).get("name") or address] = address
    return found


class ConfirmationDesk:
    """Asks every ready gateway for the models that are followed. ``on_change`` is called when an answer changes."""

    def __init__(self, gateways: Gateways, settings: GatewaySettings, *, on_change: Callable[[ModelKey], None]) -> None:
        self._gateways = gateways
        self._settings = settings
        self._on_change = on_change
        self._orders: dict[ModelKey, ConfirmationOrder] = {}
        self._tasks: KeyedTasks[ModelKey] = KeyedTasks()
        self._confirmed: dict[ModelKey, Mapping[str, int | None]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=64))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()
        if self._session is not None:
            await self._session.close()

    def confirmed(self, key: ModelKey) -> Mapping[str, int | None]:
        """Every ready gateway and the generation it obeys, None where it did not say. Empty: none is known yet."""
        return self._confirmed.get(key, {})

    def follow(self, key: ModelKey, order: ConfirmationOrder | None) -> None:
        """From now on ask about this table; None: about none of this model."""
        if order is None:
            self._orders.pop(key, None)
            self._confirmed.pop(key, None)
            self._tasks.stop(key)
            return
        fresh = self._orders.get(key) != order
        self._orders[key] = order
        if fresh or not self._tasks.is_running(key):
            self._tasks.start(key, self._ask_again_and_again(key), name=f"confirmations of {key}")

    async def _ask_again_and_again(self, key: ModelKey) -> None:
        while True:
            order = self._orders[key]
            answers = await self._ask_all(key, order)
            if answers != self._confirmed.get(key):
                self._confirmed[key] = answers
                self._on_change(key)
            settled = answers and all(obeyed is not None and obeyed >= order.generation for obeyed in answers.values())
            await asyncio.sleep(self._settings.settled_seconds if settled else self._settings.poll_seconds)

    async def _ask_all(self, key: ModelKey, order: ConfirmationOrder) -> Mapping[str, int | None]:
        try:
            ready = await self._gateways.ready()
        except ClientsError as error:
            # Who is there is not known; whoever confirmed before still obeys, for generations only grow.
            _LOG.warning("%s: gateways cannot be listed: %s", key, error)
            return self._confirmed.get(key, {})
        names = sorted(ready)
        answers = await asyncio.gather(*(self._ask(ready[name], key, order) for name in names))
        return dict(zip(names, answers, strict=True))

    async def _ask(self, address: str, key: ModelKey, order: ConfirmationOrder) -> int | None:
        assert self._session is not None
        url = pod_url(address, self._settings.port, f"/routing/{key.namespace}/{key.model}")
        try:
            async with self._session.get(url) as response:
                if response.status != 200:
                    return None
                answer: Any = await response.json()
                generation = answer["generation"]
                return generation if answer["uid"] == order.table_uid and isinstance(generation, int) else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError):
            return None
