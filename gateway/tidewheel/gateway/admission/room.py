"""How much work the replicas of a version take before they only queue it: from what they report of themselves.

Slots are the sequences that a replica runs at once within its time per token; tokens are its KV memory. Work is let in
up to that, paid work a little more, so that a freed slot finds its next request at the engine. All else waits here, in
order: an engine serves its lanes strictly, and a free request in its queue would be overtaken until it has aged.
Memory that is nearly full stops admission: one more sequence would push another one out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_KV_FILL: Final = 0.95
_KV_GUARD: Final = 0.03
CEILINGS: Final = {"paid": 1.0, "free": 0.97, "background": 0.8}
"""Share of the room that a lane may fill: the rest answers paid requests at once."""


@dataclass(frozen=True, slots=True)
class ReplicaRoom:
    """One ready replica. ``running`` and ``waiting`` are None where its report is too old to go by."""

    slots: int
    kv_tokens: int
    free_tokens: int | None
    running: int | None
    waiting: int | None


@dataclass(frozen=True, slots=True)
class Room:
    """What a version takes from this gateway. ``full`` means: nothing more, whatever the numbers say.

    ``slack`` is how many paid requests may wait at the engines, beyond the slots.
    """

    slots: float
    tokens: float
    full: bool = False
    slack: float = 0.0


def room_of(replicas: Sequence[ReplicaRoom | None], *, own: int, slack: float, gateways: int) -> Room | None:
    """Over all ready replicas; None where not one says what it can take. ``own`` is what this gateway has in flight.

    Replicas that say nothing count as the mean of those that do. What other gateways have in flight is what replicas
    report beyond ``own``; each of ``gateways`` may fill its equal share whatever the others do, so that none starves.
    """
    known = [replica for replica in replicas if replica is not None]
    if not known:
        return None
    scale = len(replicas) / len(known)
    slots = float(scale * sum(replica.slots for replica in known))
    extra = scale * sum(max(1.0, slack * replica.slots) if slack else 0.0 for replica in known)
    tokens = scale * _KV_FILL * sum(replica.kv_tokens for replica in known)
    fresh = [replica for replica in known if replica.running is not None]
    reported = sum((replica.running or 0) + (replica.waiting or 0) for replica in fresh)
    others = max(0, reported - own) if len(fresh) == len(known) else 0
    share = max(1.0 - others / slots, 1.0 / gateways) if slots else 0.0
    full = bool(fresh) and len(fresh) == len(known) and all(_is_full(replica) for replica in fresh)
    return Room(slots=slots * share, tokens=tokens * share, full=full, slack=extra * share)


def _is_full(replica: ReplicaRoom) -> bool:
    return replica.free_tokens is not None and replica.free_tokens < _KV_GUARD * replica.kv_tokens
