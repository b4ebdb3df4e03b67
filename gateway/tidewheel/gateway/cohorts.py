"""Which part of a comparison a request is: the new version's, a like-sized slice of the old one's, or neither.

While a rollout moves traffic, its table names the rollout and the split it started from. What has grown since is the
canary; what has shrunk is the base, of which a slice as large as the canary's share is the control. The slice is drawn
by a hash of the conversation with a salt of its own, so that it is independent of the choice of the version.
"""

from hashlib import blake2b
from typing import Final

from tidewheel.gateway.snapshot import Table

REST: Final = "rest"
PINNED: Final = "pinned"
CANARY: Final = "canary"
CONTROL: Final = "control"
_SCALE: Final = 2**64


def cohort_of(table: Table, version: str, *, conversation: str) -> str:
    """The cohort of a request that was not pinned."""
    if table.spec.cause.rollout_id is None:
        return REST
    before = {target.version: target.weight for target in table.spec.previous}
    now = dict(table.weights)
    grown = sum(max(0, weight - before.get(name, 0)) for name, weight in now.items())
    mine, had = now.get(version, 0), before.get(version, 0)
    if mine > had:
        return CANARY
    if mine == had or not grown:
        return REST
    return CONTROL if _drawn(table.spec.salt, conversation) * mine < min(grown, mine) else REST


def _drawn(salt: str, conversation: str) -> float:
    """Uniform in [0, 1)."""
    text = f"control:{len(salt)}:{salt}{conversation}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") / _SCALE
