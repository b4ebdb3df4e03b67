"""What a stream is told beside the reply: chunks without choices, which clients that do not know them pass over."""

import time
from typing import Any

import orjson

from tidewheel.gateway.admission.eta import Estimate
from tidewheel.gateway.admission.ladder import Notice


def queued_event(request_id: str, model: str, estimate: Estimate) -> bytes:
    """Place in the queue, and when the turn will come as far as it can be said; ``eta_range_ms`` holds 80 % of them."""
    said: dict[str, Any] = {"type": "queued", "position": estimate.position, "eta_ms": _ms(estimate.seconds)}
    if estimate.low is not None and estimate.high is not None:
        said["eta_range_ms"] = [_ms(estimate.low), _ms(estimate.high)]
    return _chunk(request_id, model, said)


def notice_event(request_id: str, model: str, notice: Notice) -> bytes:
    """That the reply is not what was asked for, and why."""
    return _chunk(request_id, model, {"type": notice.kind, "message": notice.message})


def _chunk(request_id: str, model: str, said: dict[str, Any]) -> bytes:
    chunk = {
        "id": request_id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
        "choices": [],
        "tidewheel": said,
    }
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
