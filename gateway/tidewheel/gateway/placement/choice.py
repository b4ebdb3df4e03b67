"""Which replica: one that knows the prompt's beginning, unless it has more than its share of the load.

Rendezvous hashing (Thaler and Ravishankar, 1998) gives each prefix its order of replicas, the same in every gateway;
a replica that goes moves only its own prefixes. The bound is checked for each replica chosen (Mirrokni, Thorup,
Zadimoghaddam, 2018): load <= max(allowance, 1.25 x mean + this request). Never a switch for the whole fleet. One that
has a request in every slot would make this one wait in its queue, behind whatever comes in a higher lane: it is passed
over while any other has a slot.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tidewheel.gateway.placement.prefix import Prefix
from tidewheel.gateway.placement.warmth import Warm

_BOUND: Final = 1.25
_KV_BOUND: Final = 0.95
_WORTH: Final = 0.5
_MASK: Final = (1 << 64) - 1


class Reason(Enum):
    """Why a replica was chosen, for logs and tests."""

    WARM = "warm"
    HOME = "home"
    OVERFLOW = "overflow"
    LEAST_LOADED = "least-loaded"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One ready replica. ``load`` in tokens; ``seed`` is drawn from its uid; ``share`` < 1 while it warms up.

    ``full``: each of its slots has a request.
    """

    uid: str
    seed: int
    load: float
    kv_used: float = 0.0
    full: bool = False
    share: float = 1.0

    @property
    def weight(self) -> float:
        """Load as the bound sees it: a replica that warms up counts as fuller than it is."""
        return self.load / self.share


@dataclass(frozen=True, slots=True)
class Choice:
    """The index of the candidate, and why."""

    index: int
    reason: Reason


def choose(
    candidates: Sequence[Candidate],
    *,
    prefix: Prefix | None,
    warm: Warm | None,
    cost: float,
    allowance: float,
    rng: random.Random,
) -> Choice | None:
    """One of the candidates; None where there is none."""
    if len(candidates) < 2:
        return Choice(0, Reason.LEAST_LOADED) if candidates else None
    bound = max(allowance, _BOUND * sum(each.load for each in candidates) / len(candidates) + cost)
    vacant = [index for index, each in enumerate(candidates) if not each.full]
    among = vacant or range(len(candidates))
    within = [
        index for index in among if candidates[index].weight + cost <= bound and candidates[index].kv_used <= _KV_BOUND
    ]
    if prefix is None or not within:
        return Choice(_least_loaded(candidates, within or among, rng), Reason.LEAST_LOADED)
    known = set(warm.uids) if warm is not None else set()
    warm_within = [index for index in within if candidates[index].uid in known]
    deep = warm is not None and warm.depth >= _WORTH * len(prefix.positions)
    if deep and warm_within:
        return Choice(_least_loaded(candidates, warm_within, rng), Reason.WARM)
    home = max(range(len(candidates)), key=lambda index: score(prefix.home, candidates[index].seed))
    if home in within:
        return Choice(home, Reason.HOME)
    if warm_within:
        return Choice(_least_loaded(candidates, warm_within, rng), Reason.OVERFLOW)
    # The next ones in the prefix's own order, so that overflow finds the same replicas again.
    second = max(within, key=lambda index: score(prefix.home, candidates[index].seed))
    return Choice(second, Reason.OVERFLOW)


def score(key: int, seed: int) -> int:
    """What a replica draws for a key: the finaliser of SplitMix64 over both."""
    mixed = (key ^ seed) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def ramp(age: float, seconds: float) -> float:
    """Share of its load that a replica of this age gets, from a tenth to all: its cache and kernels are cold."""
    return 1.0 if age >= seconds else 0.1 + 0.9 * max(0.0, age) / seconds


def _least_loaded(candidates: Sequence[Candidate], among: Sequence[int], rng: random.Random) -> int:
    least = min(candidates[index].weight for index in among)
    return rng.choice([index for index in among if candidates[index].weight <= least])
