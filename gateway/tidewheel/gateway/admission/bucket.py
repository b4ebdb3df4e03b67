"""A token bucket: a level in fractions, and the moment it was true. Refill does not depend on how often one looks."""

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Holds at most ``capacity``, gains ``per_second``. Moments are of one monotonic clock, in seconds."""

    capacity: float
    per_second: float
    level: float
    at: float

    @classmethod
    def full(cls, capacity: float, per_second: float, *, now: float) -> "Bucket":
        """A new one."""
        return cls(capacity, per_second, capacity, now)

    def refill(self, now: float) -> None:
        """Bring the level to this moment. A clock that went back neither locks out nor gives anything."""
        if now > self.at:
            self.level = min(self.capacity, self.level + (now - self.at) * self.per_second)
        self.at = now

    def resize(self, capacity: float, per_second: float) -> None:
        """The limit was changed; what is there stays, as far as it fits."""
        self.capacity, self.per_second = capacity, per_second
        self.level = min(self.level, capacity)

    def take(self, amount: float) -> None:
        """May be asked for no more than the level."""
        self.level = max(0.0, self.level - amount)

    def give(self, amount: float) -> None:
        """A refund; a negative one takes what a request cost beyond its reservation, never below 0."""
        self.level = min(self.capacity, max(0.0, self.level + amount))

    def seconds_until(self, amount: float) -> float:
        """How long until so much is there."""
        return max(0.0, amount - self.level) / self.per_second

    @property
    def is_full(self) -> bool:
        """Nothing would be lost by forgetting it."""
        return self.level >= self.capacity
