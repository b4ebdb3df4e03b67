"""Which version a conversation goes to.

Weighted rendezvous hashing: every version draws a score from (salt, version, key) and its weight, the highest wins.
Each gateway comes to the same answer from the table alone, and a version gets exactly its share of the keys because
-ln(u)/w is exponentially distributed with rate w (Efraimidis and Spirakis, 2006).

With two versions, moving x basis points from A to B moves exactly that share of conversations from A to B and nothing
else. With three or more no rule without memory can promise that (a cycle of moves would have to bring every key back);
here a version whose weight stays keeps its share and trades a few conversations with the two that change.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b

_SCALE = 2.0**-64


def choose_version(targets: Sequence[tuple[str, int]], *, salt: str, key: str) -> str | None:
    """The version for ``key`` among (version, weight) pairs; None when no weight is above 0.

    A weight of 0 is never chosen.
    """
    carrying = [(version, weight) for version, weight in targets if weight > 0]
    if len(carrying) <= 1:
        return carrying[0][0] if carrying else None
    return max(carrying, key=lambda target: (_score(target[1], salt=salt, version=target[0], key=key), target[0]))[0]


def _score(weight: int, *, salt: str, version: str, key: str) -> float:
    # Lengths keep ("a", "bc") and ("ab", "c") apart.
    text = f"{len(salt)}:{salt}{len(version)}:{version}{key}".encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    uniform = (drawn + 0.5) * _SCALE
    return -weight / math.log(uniform) if uniform < 1.0 else math.inf
