"""What an engine says of itself in ``GET /load``."""

from dataclasses import dataclass
from typing import Any, Final

_BLOCK_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One answer of ``/load``; tokens are KV memory in tokens of context."""

    slots: int
    kv_tokens: int
    free_tokens: int
    running: int
    waiting: int

    @property
    def used_tokens(self) -> int:
        """Context held now."""
        return self.kv_tokens - self.free_tokens


def parse_report(body: Any) -> LoadReport | None:
    """From the JSON object; None where an engine says something else there."""
    names = ("max_num_seqs", "total_blocks", "free_blocks", "running", "waiting")
    values: list[Any] = [body.get(name) for name in names] if isinstance(body, dict) else []
    if not values or not all(isinstance(value, int) and value >= 0 for value in values):
        return None
    slots, total, free, running, waiting = values
    if not slots or not total:
        return None
    block = body.get("block_size", _BLOCK_TOKENS)
    block = block if isinstance(block, int) and block > 0 else _BLOCK_TOKENS
    return LoadReport(slots, total * block, free * block, running, waiting)
