"""A gateway with keys and an engine that reports its load."""

from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.gateway.conftest import (  # noqa: F401 - fixtures
    client_of,
    connect,
    serve,
    stack,
    start,
    start_upstream,
)
from tests.gateway.upstreams import Behaviour, Call

KEYS = {name: f"sk-tw-{name}-0123456789abcdef" for name in ("alice", "bob", "eve", "batch")}
TIER_OF = {"alice": "paid", "bob": "free", "eve": "free", "batch": "background"}

AskAs = Callable[..., Awaitable[tuple[int, dict[str, str], bytes]]]


def authorization(name: str) -> str:
    return f"authorization: Bearer {KEYS[name]}"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    entries = [
        {"id": name, "sha256": sha256(key.encode()).hexdigest(), "user": name, "tier": TIER_OF[name]}
        for name, key in KEYS.items()
    ]
    path = tmp_path / "keys.json"
    path.write_bytes(orjson.dumps({"keys": entries}))
    return path


def reporting(behave: Behaviour, load: dict[str, Any]) -> Behaviour:
    """Answers ``/load`` with what ``load`` holds at that moment."""

    async def answer(call: Call) -> None:
        if call.line.startswith("GET /load"):
            call.reply(200, orjson.dumps(load), ("content-type", "application/json"))
        else:
            await behave(call)

    return answer


def load_of(slots: int, *, blocks: int = 10_000, free: int = 10_000, running: int = 0) -> dict[str, Any]:
    return {"max_num_seqs": slots, "total_blocks": blocks, "free_blocks": free, "running": running, "waiting": 0}
