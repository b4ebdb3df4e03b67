"""Replicas that wait, start, serve and drain."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True)
class Replica:
    """``ready_at`` is when it will serve; infinite while it waits at the gate."""

    number: int
    ordered_at: float
    ready_at: float
    leaves_at: float | None = None
    replaced: bool = False

    def serves(self, at: float) -> bool:
        """Ready, and not draining."""
        return self.ready_at <= at and self.leaves_at is None


@dataclass(slots=True)
class Fleet:
    """All replicas of one version. ``start`` gives the seconds that a start takes at a moment."""

    start: Callable[[float], float]
    replicas: list[Replica] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    largest: int = 0
    replaced: int = 0
    cut: int = 0
    moved: int = 0
    _numbers: "count[int]" = field(default_factory=count)

    def live(self) -> list[Replica]:
        """All but those that leave."""
        return [replica for replica in self.replicas if replica.leaves_at is None]

    def ready(self, at: float) -> int:
        """How many serve."""
        return sum(replica.serves(at) for replica in self.replicas)

    def pending(self, at: float) -> list[Replica]:
        """Ordered, not serving yet."""
        return [replica for replica in self.live() if replica.ready_at > at]

    def advance(self, at: float, tick: float) -> None:
        """Note starts that have ended; let go of what has drained."""
        for replica in self.live():
            if at - tick < replica.ready_at <= at:
                self.starts.append(replica.ready_at - replica.ordered_at)
        self.replicas = [found for found in self.replicas if found.leaves_at is None or found.leaves_at > at]

    def order(self, wanted: int, at: float, *, allowed: int, stream_seconds: float, node_wait: float) -> None:
        """Create what is missing, as far as ``allowed``; drain what is too much: pending ones first, the last first."""
        live = self.live()
        for _ in range(wanted - len(live)):
            gated = len(self.replicas) >= allowed
            wait = node_wait if len(self.live()) >= self.largest else 0.0
            ready_at = float("inf") if gated else at + wait + self.start(at)
            self.replicas.append(Replica(next(self._numbers), at, ready_at))
        self.largest = max(self.largest, len(self.live()))
        surplus = len(live) - wanted
        if surplus > 0:
            leaving = sorted(live, key=lambda found: (found.ready_at <= at, -found.number))[:surplus]
            for replica in leaving:
                replica.leaves_at = at + stream_seconds if replica.ready_at <= at else at

    def admit(self, at: float, allowed: int) -> None:
        """Those that wait at the gate begin, as far as there is room."""
        inside = sum(found.ready_at != float("inf") for found in self.replicas)
        for replica in self.replicas:
            if replica.ready_at == float("inf") and inside < allowed and replica.leaves_at is None:
                replica.ready_at = at + self.start(at)
                inside += 1

    def replace_stuck(self, at: float, after: float) -> None:
        """One that has been starting for too long is replaced, once."""
        for replica in self.pending(at):
            if not replica.replaced and replica.ready_at != float("inf") and at - replica.ordered_at > after:
                replica.replaced = True
                replica.ready_at = min(replica.ready_at, at + self.start(at))
                self.replaced += 1

    def lose(self, share: float, at: float, *, notice: float) -> None:
        """A share of the replicas goes: at once, or with notice, in which they drain and their streams move."""
        for replica in self.live()[: round(share * len(self.live()))]:
            replica.leaves_at = at + notice
            if replica.ready_at <= at:
                if notice > 0:
                    self.moved += 1
                else:
                    self.cut += 1
