"""Keeps the Lease: the loop around the state machine."""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from tidewheel.clients.errors import AlreadyExists, ApiError, Conflict, NotFound
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import LEASES, KubeObject
from tidewheel.operator.leading.lease import LeaseSettings, LeaseState, LeaseView, Step

_LOG: Final = logging.getLogger(__name__)


class Elector:
    """Tries to hold one Lease. ``acquired`` is set while it is ours, ``lost`` from its loss until it is ours again."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        settings: LeaseSettings,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._settings = settings
        self._clock = clock
        self._state = LeaseState(settings)
        self._acquire_time = ""
        self.acquired = asyncio.Event()
        self.lost = asyncio.Event()

    @property
    def holder(self) -> str:
        """Who holds the Lease, as far as we know."""
        return self._state.seen.holder if self._state.seen else ""

    def holds(self) -> bool:
        """Whether we may write now."""
        return self._state.holds(self._clock())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.renew_deadline_seconds / 3):
                    await self._round()
            except ApiError as error:
                _LOG.warning("lease %s: %s", self._name, error)
            except TimeoutError:
                _LOG.warning("lease %s: no answer in time", self._name)
            self._tell()
            await asyncio.sleep(self._settings.retry_seconds * random.uniform(0.9, 1.1))

    async def release(self) -> None:
        """Give the Lease back at once, so that the next operator need not wait for it to expire."""
        if not self.holds():
            return
        try:
            await self._client.replace(LEASES, self._body(holder=""))
        except ApiError as error:
            _LOG.warning("lease %s was not released: %s", self._name, error)

    def _tell(self) -> None:
        holds = self.holds()
        if holds and not self.acquired.is_set():
            _LOG.info("leading: lease %s is ours", self._name, extra={"identity": self._settings.identity})
            self.lost.clear()
            self.acquired.set()
        elif not holds and self.acquired.is_set():
            _LOG.error("lease %s is not surely ours any more, held by %r", self._name, self.holder)
            self.acquired.clear()
            self.lost.set()

    async def _round(self) -> None:
        if not self.holds():
            await self._read()
        if self._state.next_step(self._clock()) is Step.WAIT:
            return
        sent_at = self._clock()
        if self.holder != self._settings.identity:
            self._acquire_time = _micro_time()
        try:
            written = await self._write()
        except (Conflict, AlreadyExists, NotFound):
            await self._read()
        else:
            self._state.written(LeaseView.of(written), sent_at=sent_at)

    async def _read(self) -> None:
        try:
            found = await self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            self._state.observe(None, self._clock())
        else:
            self._state.observe(LeaseView.of(found), self._clock())

    async def _write(self) -> KubeObject:
        body = self._body(holder=self._settings.identity)
        if self._state.next_step(self._clock()) is Step.CREATE:
            return await self._client.create(LEASES, body)
        return await self._client.replace(LEASES, body)

    def _body(self, *, holder: str) -> KubeObject:
        seen = self._state.seen
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if seen is not None:
            metadata["resourceVersion"] = seen.resource_version
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(self._settings.lease_seconds)),
                "acquireTime": self._acquire_time or _micro_time(),
                "renewTime": _micro_time(),
                "leaseTransitions": self._state.next_transitions() if holder else (seen.transitions if seen else 0),
            },
        }


def _micro_time() -> str:
    """For people; no decision is made from it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
