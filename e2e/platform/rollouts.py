"""Judged rollouts under load on a real cluster, with times that are shorter than in production and nothing else.

Blocks are four scrapes long and a step bakes for two of them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from e2e.conftest import SCRAPE_SECONDS
from e2e.platform.history import SplitHistory
from e2e.platform.installation import Installation
from e2e.platform.models import Model
from e2e.platform.traffic import Load, steady_load
from tests.waiting import eventually

FIRST_STEP = 20
PATIENCE_SECONDS = 300
_BLOCK_SECONDS = 4 * SCRAPE_SECONDS
_LINES = 12
_REPLY_TOKENS = 8
_ENOUGH_REQUESTS = 400  # of the old version, before a step: the judge needs 200 to choose what it looks at

ROLLOUT: Mapping[str, Any] = {
    "steps": [{"percent": FIRST_STEP}, {"percent": 50}, {"percent": 100}],
    "bakeSeconds": int(2 * _BLOCK_SECONDS),
    "tickSeconds": 1,
    "keepPreviousSeconds": 5,
    "blindAlertSeconds": 5,
    # What must rule harm out is less, as a step lasts a quarter of a minute; what rolls back is the default.
    "judge": {
        "blockSeconds": _BLOCK_SECONDS,
        "cacheWarmSeconds": 0,
        "minLatencyBlocks": 1,
        "clearOdds": 3,
        "maxErrorRateIncrease": 0.05,
        "maxStallRateIncrease": 0.05,
    },
}


@dataclass(frozen=True, slots=True)
class Rollout:
    """One model's rollout from v1, whose name no other test has. ``rule`` is what differs from `ROLLOUT`."""

    installation: Installation
    model: Model
    rule: Mapping[str, Any]

    def version(self, name: str, *, step_milliseconds: float = 10.0, **spec: Any) -> dict[str, Any]:
        """Each runs something else, else nothing could be wrong with one alone; a busy machine keeps 1 s a token."""
        number = int(name.removeprefix("v"))
        arguments = ["--step-time", f"{step_milliseconds},0.01,0.05", "--max-waiting", str(900 + number)]
        return self.model.version(name, **{"arguments": arguments, "slo": {"tpotMs": 1000, "ttftMs": 10_000}, **spec})

    def want(self, version: str, **rule: Any) -> None:
        """The rule now sends everything to this version, in steps."""
        traffic = {"v1": 0, version: 100} if version != "v1" else {"v1": 100}
        self.installation.apply(self.model.rule(traffic, rollout={**ROLLOUT, **self.rule, **rule}))

    async def serve(self, *versions: dict[str, Any]) -> None:
        """v1 takes all traffic; the others exist. One of the others may be a v1 of another make."""
        named = {version["spec"]["version"]: version for version in (self.version("v1"), *versions)}
        self.installation.apply(*named.values())
        self.want("v1")
        await self.installation.has_split(self.model, {"v1": 100}, within_seconds=PATIENCE_SECONDS)

    async def has_history(self, load: Load) -> None:
        """Without it the judge does not know where to look."""
        await eventually(lambda: len(load.streams) > _ENOUGH_REQUESTS, within_seconds=120, what="traffic has a history")

    async def start(self, load: Load, version: str = "v2") -> float:
        """Traffic has been served for a while; now another version is wanted. When it got its first share."""
        await self.has_history(load)
        self.want(version)
        first = {"v1": 100 - FIRST_STEP, version: FIRST_STEP}
        await self.installation.has_split(self.model, first, within_seconds=PATIENCE_SECONDS)
        return time.monotonic()

    def status(self) -> dict[str, Any]:
        """``status.rollout`` of the rule."""
        rule = self.installation.get("routingrule", self.model.name)
        found: dict[str, Any] = rule.get("status", {}).get("rollout", {})
        return found

    async def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status that is so. The last one is in the failure: it says why the rollout stands where it does."""
        seen: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not holds(seen):
                    # In a thread: the load goes on meanwhile.
                    seen = await asyncio.to_thread(self.status)
                    await asyncio.sleep(0.3)
        except TimeoutError:
            raise AssertionError(f"not {what}: {self.installation.weights(self.model)}, {seen}") from None
        return seen

    async def until_outcome(self, outcome: str) -> dict[str, Any]:
        """How the rollout ended, which must be this."""
        seen = await self.until(f"over ({outcome})", lambda status: bool(status.get("outcome")))
        assert seen["outcome"] == outcome, seen
        return seen

    async def until_condition(self, kind: str, reason: str) -> dict[str, Any]:
        """The rule's condition, once it is True for this reason and for the present generation."""

        def found() -> dict[str, Any]:
            rule = self.installation.get("routingrule", self.model.name)
            conditions = rule.get("status", {}).get("conditions", [])
            said: dict[str, Any] = next((entry for entry in conditions if entry["type"] == kind), {})
            here = (said.get("status"), said.get("reason"), said.get("observedGeneration"))
            return said if here == ("True", reason, rule["metadata"]["generation"]) else {}

        async def look() -> dict[str, Any]:
            return await asyncio.to_thread(found)

        return await eventually(look, within_seconds=120, every=0.5, what=f"the rule is {kind} because {reason}")

    def rejected(self) -> list[tuple[str, str]]:
        """Versions and digests that are not tried again."""
        spec = self.installation.get("routingtable", self.model.name)["spec"]
        return [(entry["version"], entry["digest"]) for entry in spec.get("rejected", [])]

    async def more_load(self, load: Load, replies: int = 100) -> None:
        """So many more replies have come to their end."""
        answered = len(load.streams)
        await eventually(lambda: len(load.streams) > answered + replies, within_seconds=120, what="load goes on")

    @asynccontextmanager
    async def load(self, *, lines: int = _LINES) -> AsyncIterator[Load]:
        """More requests than the judge needs, for as long as the block lasts."""
        url = self.installation.gateway_url
        async with steady_load(url, self.model.name, lines=lines, max_tokens=_REPLY_TOKENS) as load:
            yield load

    @contextmanager
    def history(self) -> Iterator[SplitHistory]:
        """Every split from now to the end of the block, the shortest too."""
        with SplitHistory(self.installation, self.model) as history:
            yield history


def rollout_of(installation: Installation, name: str, *, reply_tokens: int = _REPLY_TOKENS, **rule: Any) -> Rollout:
    """A model of that name and a part that a second try does not share; ``rule`` replaces parts of `ROLLOUT`."""
    own = f"{name}-{secrets.token_hex(2)}"
    return Rollout(installation, Model(own, reply_tokens=reply_tokens, drain_seconds=600), rule)
