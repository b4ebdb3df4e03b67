"""What a gateway tells its peers: how long a new request would wait in each lane of what it serves. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from tidewheel.gateway.snapshot import VersionKey

PATH: Final = "/peers/waits"
_LANES: Final = ("paid", "free", "background")

Waits = Mapping[tuple[str, str], Mapping[str, float]]
"""Seconds by (``namespace/model``, version) and lane. A lane whose wait is not known, or is paused, is not told."""


def encode(waits: Iterable[tuple[VersionKey, Mapping[str, float]]]) -> bytes:
    """The answer to a peer."""
    told = [{"model": str(key.model_key), "version": key.version, "seconds": dict(lanes)} for key, lanes in waits]
    return orjson.dumps({"waits": told})


def decode(body: bytes) -> Waits:
    """The way back; what is not understood is left out."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    entries = parsed.get("waits") if isinstance(parsed, dict) else None
    found: dict[tuple[str, str], dict[str, float]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("seconds"), dict):
            found[str(entry.get("model")), str(entry.get("version"))] = _lanes(entry["seconds"])
    return found


def _lanes(seconds: dict[str, Any]) -> dict[str, float]:
    return {
        lane: float(value)
        for lane, value in seconds.items()
        if lane in _LANES and isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    }
