"""Shadow prompts: asked of one replica of each version, one at a time, before the new one gets any user."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from tidewheel.clients.errors import ApiError, NotFound
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import CONFIG_MAPS
from tidewheel.crds.names import ENGINE_PORT, MANAGED_BY, MANAGED_BY_LABEL, MODEL_LABEL, QUALITY_KEY, quality_name
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.planning.rollouts.evidence import ShadowOrder
from tidewheel.operator.pod_http import engine_headers, pod_url
from tidewheel.operator.reconciling.executor import ROLLOUT_MANAGER
from tidewheel.operator.tasks import KeyedTasks
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.quality.artefact import artefact
from tidewheel.rollout.quality.built_in import BUILT_IN
from tidewheel.rollout.quality.prompts import Prompt, Reply, Shadow, prompts_from_lines
from tidewheel.rollout.quality.scoring import QualityKind, QualityVerdict, score

_LOG: Final = logging.getLogger(__name__)
_PROMPTS_KEY: Final = "prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSettings:
    """Times in seconds. ``port``: where engines listen."""

    answer_seconds: float = 60.0
    retry_seconds: float = 30.0
    """After a round that told nothing."""
    port: int = ENGINE_PORT


class ShadowDesk:
    """Asks what it is told to. ``on_verdict`` is called when the answers have been scored."""

    def __init__(
        self,
        client: KubeClient,
        *,
        token_file: Path | None,
        settings: ShadowSettings,
        may_write: Callable[[], bool],
        on_verdict: Callable[[ModelKey], None],
    ) -> None:
        self._client = client
        self._token_file = token_file
        self._settings = settings
        self._may_write = may_write
        self._on_verdict = on_verdict
        self._orders: dict[ModelKey, ShadowOrder] = {}
        self._tasks: KeyedTasks[ModelKey] = KeyedTasks()
        self._verdicts: dict[ModelKey, QualityVerdict] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._settings.answer_seconds))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()
        if self._session is not None:
            await self._session.close()

    def verdict(self, key: ModelKey) -> QualityVerdict | None:
        """The last one, of whatever rollout it was."""
        return self._verdicts.get(key)

    def follow(self, key: ModelKey, order: ShadowOrder | None) -> None:
        """From now on ask this; None: nothing of this model. What is under way for the same rollout goes on."""
        before = self._orders.get(key)
        if order is None:
            self._orders.pop(key, None)
            self._tasks.stop(key)
            return
        self._orders[key] = order
        if before is not None and before.rollout_id == order.rollout_id:
            return
        self._verdicts.pop(key, None)
        self._tasks.start(key, self._ask_until_told(key), name=f"shadow prompts of {key}")

    async def _ask_until_told(self, key: ModelKey) -> None:
        while True:
            order = self._orders[key]
            verdict, shadows = await self._round(key, order)
            self._verdicts[key] = verdict
            self._on_verdict(key)
            await self._keep(key, artefact(verdict, shadows))
            if verdict.kind is not QualityKind.BLIND:
                return
            await asyncio.sleep(self._settings.retry_seconds)

    async def _round(self, key: ModelKey, order: ShadowOrder) -> tuple[QualityVerdict, Sequence[Shadow]]:
        try:
            prompts = await self._prompts(key, order)
            shadows = [await self._shadow(key, order, prompt) for prompt in prompts]
            verdict = score(shadows, order.settings)
        except (SettingsError, ApiError) as error:
            shadows = []
            verdict = QualityVerdict(kind=QualityKind.BLIND, message=f"shadow prompts cannot be asked: {error}")
        return replace(verdict, rollout_id=order.rollout_id), shadows

    async def _prompts(self, key: ModelKey, order: ShadowOrder) -> Sequence[Prompt]:
        name = order.settings.prompts
        if not name:
            return BUILT_IN
        try:
            found = await self._client.get(CONFIG_MAPS, name, key.namespace)
        except NotFound:
            raise SettingsError(
                f"there is no ConfigMap {name} with the prompt set; create it, or leave it out"
            ) from None
        return prompts_from_lines((found.get("data") or {}).get(_PROMPTS_KEY, ""))

    async def _shadow(self, key: ModelKey, order: ShadowOrder, prompt: Prompt) -> Shadow:
        """Both at the same time, so that the set takes as long as the slower of them."""
        base, canary = await asyncio.gather(
            *(self._reply(key, order, prompt, host=host) for host in (order.base_host, order.canary_host))
        )
        return Shadow(prompt=prompt, base=base, canary=canary)

    async def _reply(self, key: ModelKey, order: ShadowOrder, prompt: Prompt, *, host: str) -> Reply:
        assert self._session is not None
        body = {
            "model": key.model,
            "messages": [dict(message) for message in prompt.messages],
            "max_tokens": order.settings.max_tokens,
            "temperature": 0,
        }
        try:
            url = pod_url(host, self._settings.port, "/v1/chat/completions")
            async with self._session.post(url, json=body, headers=engine_headers(self._token_file)) as answer:
                if answer.status != 200:
                    return Reply(error=f"{answer.status}: {(await answer.text())[:200]}")
                return _as_reply(await answer.json())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError, IndexError) as error:
            return Reply(error=str(error) or type(error).__name__)

    async def _keep(self, key: ModelKey, text: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": quality_name(key.model),
                "namespace": key.namespace,
                "labels": {MANAGED_BY_LABEL: MANAGED_BY, MODEL_LABEL: key.model},
            },
            "data": {QUALITY_KEY: text},
        }
        if not self._may_write():
            return
        try:
            await self._client.apply(CONFIG_MAPS, body, field_manager=ROLLOUT_MANAGER, force=True)
        except ApiError as error:
            _LOG.warning("%s: the answers to the shadow prompts are not kept: %s", key, error)


def _as_reply(body: Mapping[str, Any]) -> Reply:
    choice = body["choices"][0]
    return Reply(text=str(choice["message"].get("content") or ""), finish_reason=str(choice.get("finish_reason") or ""))
