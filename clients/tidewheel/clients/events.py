"""Kubernetes Events about our objects: for people who type ``kubectl describe``; losing one harms nothing."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tidewheel.clients.errors import ClientsError
from tidewheel.clients.event_body import EventType, event_body
from tidewheel.clients.kubernetes import EVENTS, KubeClient, KubeObject

_LOG: Final = logging.getLogger(__name__)
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """An object may send ``burst`` Events of one reason at once, then one per ``refill_seconds``."""

    burst: int = 5
    refill_seconds: float = 60.0
    timeout_seconds: float = 5.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    dropped: int = 0


class EventRecorder:
    """Posts Events, of one (object, reason) no more than settings allow; those held back are counted in the next."""

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str,
        instance: str = "",
        settings: EventSettings | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance or component
        self._settings = settings or EventSettings()
        self._now = now
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    async def post(
        self, about: KubeObject, *, reason: str, message: str, event_type: EventType = "Normal", action: str = ""
    ) -> bool:
        """Whether the Event was accepted. ``about`` needs apiVersion, kind and metadata; failures are logged only."""
        now = self._now()
        dropped = self._take_token((about["metadata"].get("uid", ""), reason), now.timestamp())
        if dropped is None:
            return False
        body = event_body(
            about,
            reason=reason,
            message=message,
            event_type=event_type,
            action=action,
            count=1 + dropped,
            now=now,
            component=self._component,
            instance=self._instance,
        )
        try:
            await self._client.create(EVENTS, body)
        except ClientsError as error:
            _LOG.warning("event %s about %s was not posted: %s", reason, about["metadata"]["name"], error)
            return False
        return True

    def _take_token(self, key: tuple[str, str], at: float) -> int | None:
        """How many were held back since the last one that went out, or None to hold this one back too."""
        if len(self._buckets) >= _REMEMBERED and key not in self._buckets:
            self._buckets.pop(next(iter(self._buckets)))
        bucket = self._buckets.setdefault(key, _Bucket(self._settings.burst, at))
        refilled = bucket.tokens + (at - bucket.at) / self._settings.refill_seconds
        bucket.tokens, bucket.at = min(self._settings.burst, refilled), at
        if bucket.tokens < 1:
            bucket.dropped += 1
            return None
        bucket.tokens -= 1
        dropped, bucket.dropped = bucket.dropped, 0
        return dropped
