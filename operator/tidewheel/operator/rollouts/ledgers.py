"""The decision ledger of each model in a ConfigMap: evidence survives this process, decisions can be replayed."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from tidewheel.clients.errors import ApiError, NotFound
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import CONFIG_MAPS
from tidewheel.crds.names import LEDGER_KEY, MANAGED_BY, MANAGED_BY_LABEL, MODEL_LABEL, ledger_name
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.reconciling.executor import ROLLOUT_MANAGER
from tidewheel.rollout.errors import LedgerError
from tidewheel.rollout.ledger.codec import from_text, to_compressed_text
from tidewheel.rollout.ledger.records import Ledger, LedgerTransition

_LOG: Final = logging.getLogger(__name__)
_LARGEST: Final = 700_000
"""Characters; an object of etcd may have 1.5 MB."""


class Ledgers:
    """Read once per model and term, written beside whoever adds to it: a look that is cut short still gets there.

    A write that fails is made up for by the next.
    """

    def __init__(self, client: KubeClient, *, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._may_write = may_write
        self._ledgers: dict[ModelKey, Ledger] = {}
        self._reading: dict[ModelKey, asyncio.Lock] = {}
        self._writers: dict[ModelKey, asyncio.Task[None]] = {}

    async def of(self, key: ModelKey) -> Ledger:
        """What was decided so far. Raises ApiError."""
        async with self._reading.setdefault(key, asyncio.Lock()):
            if key not in self._ledgers:
                self._ledgers[key] = await self._read(key)
            return self._ledgers[key]

    def save(self, key: ModelKey, ledger: Ledger) -> None:
        """Replace what ``of`` gave just now."""
        if ledger == self._ledgers.get(key):
            return
        self._ledgers[key] = ledger
        if key not in self._writers:
            self._writers[key] = asyncio.create_task(self._write_newest(key), name=f"ledger of {key}")

    async def note(self, key: ModelKey, transitions: Iterable[LedgerTransition]) -> None:
        """Something happened to the rollout. Best effort."""
        try:
            ledger = await self.of(key)
        except ApiError as error:
            _LOG.warning("%s: the ledger cannot be read, a transition is not in it: %s", key, error)
            return
        for transition in transitions:
            ledger = ledger.with_transition(transition)
        self.save(key, ledger)

    async def close(self, *, timeout_seconds: float = 2.0) -> None:
        """What is on its way may still get there."""
        if self._writers:
            await asyncio.wait(self._writers.values(), timeout=timeout_seconds)
        for task in self._writers.values():
            task.cancel()

    async def _write_newest(self, key: ModelKey) -> None:
        written: Ledger | None = None
        try:
            while self._ledgers[key] is not written:
                written = self._ledgers[key]
                await self._write(key, written)
        finally:
            del self._writers[key]

    async def _read(self, key: ModelKey) -> Ledger:
        try:
            found = await self._client.get(CONFIG_MAPS, ledger_name(key.model), key.namespace)
        except NotFound:
            return Ledger()
        try:
            return await asyncio.to_thread(from_text, (found.get("data") or {}).get(LEDGER_KEY, ""))
        except LedgerError as error:
            _LOG.warning("%s: a new ledger is begun: %s", key, error)
            return Ledger()

    async def _write(self, key: ModelKey, ledger: Ledger) -> None:
        text = await asyncio.to_thread(to_compressed_text, ledger)
        if len(text) > _LARGEST:
            _LOG.warning("%s: a ledger of %d characters is not written", key, len(text))
            return
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": ledger_name(key.model),
                "namespace": key.namespace,
                "labels": {MANAGED_BY_LABEL: MANAGED_BY, MODEL_LABEL: key.model},
            },
            "data": {LEDGER_KEY: text},
        }
        if not self._may_write():
            return
        try:
            await self._client.apply(CONFIG_MAPS, body, field_manager=ROLLOUT_MANAGER, force=True)
        except ApiError as error:
            _LOG.warning("%s: the ledger is not written, the next look tries again: %s", key, error)
