"""Signs of life, and what they mean for /healthz."""

from collections.abc import Callable, Mapping

from tidewheel.clients.resources import Resource
from tidewheel.operator.watching.cache import WATCHED


class Vitals:
    """When each watch and the API server were heard of last. ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watched: dict[Resource, float] = {}
        self._answered_at: float | None = None

    def watch_alive(self, resource: Resource) -> None:
        """A watch of this resource was opened or has spoken."""
        if self._watched:
            self._watched[resource] = self._clock()

    def watching_begins(self) -> None:
        """From now on watches are expected."""
        self._watched = dict.fromkeys(WATCHED, self._clock())

    def watching_ends(self) -> None:
        """Nothing is watched any more."""
        self._watched = {}

    def answered(self) -> float:
        """The API server answered a call; returns the seconds since it last did."""
        now = self._clock()
        silence = 0.0 if self._answered_at is None else now - self._answered_at
        self._answered_at = now
        return silence

    def watch_ages(self) -> Mapping[Resource, float]:
        """Seconds of silence by resource; empty while nothing is watched."""
        now = self._clock()
        return {resource: now - at for resource, at in self._watched.items()}

    def api_answers(self, within_seconds: float) -> bool:
        """Whether the API server has answered lately: if not, no restart of ours would help."""
        return self._answered_at is not None and self._clock() - self._answered_at <= within_seconds


def health_trouble(
    vitals: Vitals, *, watch_old_seconds: float, queue_age_seconds: float, queue_stuck_seconds: float
) -> str:
    """Why this process should be started again; empty when it should not."""
    if queue_age_seconds > queue_stuck_seconds and vitals.api_answers(watch_old_seconds):
        return f"the queue is stuck: a model has waited for {queue_age_seconds:.0f} s"
    old = {resource.plural: age for resource, age in vitals.watch_ages().items() if age > watch_old_seconds}
    if old and vitals.api_answers(watch_old_seconds):
        names = ", ".join(f"{plural} {age:.0f} s" for plural, age in sorted(old.items()))
        return f"the watch is old: {names}"
    return ""
