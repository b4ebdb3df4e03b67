"""Which replicas have seen a prefix lately, in bounded memory: the longest positions, the latest ones."""

from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

_MOST_HOMES: Final = 64


@dataclass(frozen=True, slots=True)
class Warm:
    """Replicas that have the first ``depth`` positions of a prompt, by their uids."""

    uids: tuple[str, ...]
    depth: int


class Warmth:
    """At most ``capacity`` positions, each with the replicas that got it in the last ``seconds``.

    A replica that took a prefix because its others were full becomes one of its homes at once; one that got none of it
    for a while stops being one. So a hot prefix has as many homes as its load asks for.
    """

    def __init__(self, *, capacity: int, seconds: float) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._positions: OrderedDict[int, dict[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._positions)

    def find(self, positions: Sequence[int], *, among: Container[str], now: float) -> Warm | None:
        """The longest position that one of these replicas has."""
        for depth in range(len(positions), 0, -1):
            seen = self._positions.get(positions[depth - 1])
            if seen is None:
                continue
            uids = tuple(uid for uid, at in seen.items() if now - at <= self._seconds and uid in among)
            if uids:
                return Warm(uids, depth)
        return None

    def note(self, positions: Sequence[int], uid: str, *, now: float) -> None:
        """This replica gets the prompt."""
        for position in positions:
            seen = self._positions.get(position)
            if seen is None:
                self._positions[position] = {uid: now}
                continue
            self._positions.move_to_end(position)
            seen[uid] = now
            if len(seen) > _MOST_HOMES:
                del seen[min(seen, key=seen.__getitem__)]
        while len(self._positions) > self._capacity:
            self._positions.popitem(last=False)
