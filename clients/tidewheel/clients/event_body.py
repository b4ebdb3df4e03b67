"""What an Event looks like; apart from whoever posts it, because `kubectl rollback` posts one without our client."""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

_MESSAGE_LIMIT: Final = 1024

EventType = Literal["Normal", "Warning"]


def event_body(
    about: Mapping[str, Any],
    *,
    reason: str,
    message: str,
    event_type: EventType,
    now: datetime,
    component: str,
    instance: str = "",
    action: str = "",
    count: int = 1,
) -> dict[str, Any]:
    """A core/v1 Event in the namespace of ``about``, which needs apiVersion, kind and metadata."""
    metadata = about["metadata"]
    seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][:200]}.{secrets.token_hex(8)}",
            "namespace": metadata.get("namespace") or "default",
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            **{key: metadata[key] for key in ("namespace", "uid", "resourceVersion") if metadata.get(key)},
        },
        "type": event_type,
        "reason": reason,
        "message": message[:_MESSAGE_LIMIT],
        "action": action or reason,
        "count": count,
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "source": {"component": component},
        "reportingComponent": f"tidewheel.dev/{component}",
        "reportingInstance": (instance or component)[:128],
    }
