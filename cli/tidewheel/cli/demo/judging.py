"""The rollout of a bad version, told as the operator leads it: its steps, what the judge says, how it ends."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.cli.errors import CliError
from tidewheel.clients.kubernetes import ROUTING_RULES, KubeClient

Say = Callable[[str], None]

_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Judged:
    """How a rollout ended, or that it did not: then ``outcome`` is empty. Moments are of the monotonic clock."""

    outcome: str
    sentence: str
    first_share_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        """For so long the new version had traffic."""
        return self.ended_at - self.first_share_at


async def follow_rollout(
    client: KubeClient,
    *,
    namespace: str,
    model: str,
    canary: str,
    say: Say,
    start_seconds: float,
    judge_seconds: float,
) -> Judged:
    """Prints every step and every new verdict until the rollout is over, or the judge has had ``judge_seconds``.

    Raises CliError if the canary has no share after ``start_seconds``.
    """
    started, first_share_at, said = time.monotonic(), 0.0, ""
    while True:
        rollout = _of(await client.get(ROUTING_RULES, model, namespace), canary)
        now = time.monotonic()
        if rollout.get("firstWeightAt") and not first_share_at:
            first_share_at = now
        if (words := in_words(rollout)) != said:
            say(f"+{now - started:5.1f} s  {words}")
            said = words
        message = str(rollout.get("message", words))
        if outcome := rollout.get("outcome"):
            return Judged(str(outcome), message, first_share_at or now, now)
        if first_share_at and now - first_share_at > judge_seconds:
            return Judged("", message, first_share_at, now)
        if not first_share_at and now - started > start_seconds:
            raise CliError(f"{canary} has no share of traffic after {start_seconds:.0f} s: {message}")
        await asyncio.sleep(_POLL_SECONDS)


def in_words(rollout: Mapping[str, Any]) -> str:
    """Where the rollout stands: step, phase and verdict, without the numbers that move all the time."""
    if not rollout:
        return "rollout: not begun"
    if outcome := rollout.get("outcome"):
        return f"rollout: {outcome}"
    verdict = rollout.get("verdict")
    step = f"rollout: step {rollout.get('progress', '?')}, {rollout.get('phase', '?')}"
    return f"{step}, the judge says {verdict}" if verdict else step


def _of(rule: Mapping[str, Any], canary: str) -> Mapping[str, Any]:
    """Its progress; an earlier rollout's is none of it."""
    found: Mapping[str, Any] = (rule.get("status") or {}).get("rollout") or {}
    return found if found.get("canary") == canary else {}
