"""Buckets in Redis or Valkey, for several gateways: one script call takes from all counters or from none.

The store's own clock dates the buckets, as it is the only one that all gateways share. A clock that steps back gives
nothing and locks nobody out; one that steps forward gives one bucketful at most. Buckets expire once they would be
full: what a restarted, empty store forgets is at most one bucketful of each.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tidewheel.gateway.admission.quota import Limit, QuotaAwayError, Shortage, Taken, Want
from tidewheel.gateway.patience import patience

_log = logging.getLogger(__name__)

Evaluate = Callable[[str, Sequence[str], Sequence[str]], Awaitable[Any]]
"""Runs a Lua script with keys and arguments, as EVAL does. Raises whatever its client raises."""

# ARGV: for each key least, most, capacity, per_second. Answers {1, taken1, level1, ...} or {0, index, level, wait}.
TAKE: Final = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local levels, worst, index = {}, -1, 0
for i, key in ipairs(KEYS) do
  local least, capacity, rate = tonumber(ARGV[4*i-3]), tonumber(ARGV[4*i-1]), tonumber(ARGV[4*i])
  local kept = redis.call('HMGET', key, 'level', 'at')
  local level = capacity
  if kept[1] then
    level = math.min(capacity, tonumber(kept[1]) + math.max(0, now - tonumber(kept[2])) * rate)
  end
  levels[i] = level
  if level < least and (least - level) / rate > worst then
    worst, index = (least - level) / rate, i
  end
end
if index > 0 then
  return {0, index, tostring(levels[index]), tostring(worst)}
end
local answer = {1}
for i, key in ipairs(KEYS) do
  local most, capacity, rate = tonumber(ARGV[4*i-2]), tonumber(ARGV[4*i-1]), tonumber(ARGV[4*i])
  local taken = math.min(most, levels[i])
  redis.call('HSET', key, 'level', tostring(levels[i] - taken), 'at', string.format('%.6f', now))
  redis.call('EXPIRE', key, math.ceil(capacity / rate) + 60)
  answer[#answer+1] = tostring(taken)
  answer[#answer+1] = tostring(levels[i] - taken)
end
return answer
"""

# ARGV: amount, capacity, per_second.
GIVE: Final = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local kept = redis.call('HMGET', KEYS[1], 'level', 'at')
if not kept[1] then return 0 end
local amount, capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local level = math.min(capacity, tonumber(kept[1]) + math.max(0, now - tonumber(kept[2])) * rate)
redis.call('HSET', KEYS[1], 'level', tostring(math.min(capacity, math.max(0, level + amount))),
  'at', string.format('%.6f', now))
return 1
"""


class SharedBuckets:
    """A QuotaStore over any client that can run a script. A call that takes longer than ``timeout`` is given up."""

    def __init__(self, evaluate: Evaluate, *, timeout: float, prefix: str = "tidewheel:quota:v1:") -> None:
        self._evaluate = evaluate
        self._timeout = timeout
        self._prefix = prefix
        self._giving: set[asyncio.Task[None]] = set()

    async def take(self, wants: Sequence[Want]) -> Sequence[Taken] | Shortage:
        """All or nothing. Raises QuotaAwayError when the store does not answer in time."""
        keys = [self._key(want.limit) for want in wants]
        arguments = [
            repr(float(value))
            for want in wants
            for value in (want.least, want.most, want.limit.capacity, want.limit.per_second)
        ]
        try:
            async with patience(self._timeout):
                answer = await self._evaluate(TAKE, keys, arguments)
        except Exception as error:  # whatever the client calls it: the store is away
            raise QuotaAwayError(str(error)) from error
        if int(answer[0]) == 0:
            limit = wants[int(answer[1]) - 1].limit
            return Shortage(limit, float(answer[2]), float(answer[3]))
        pairs = [float(value) for value in answer[1:]]
        return [Taken(amount, level) for amount, level in zip(pairs[::2], pairs[1::2], strict=True)]

    def give(self, limit: Limit, amount: float) -> None:
        """In the background; what cannot be given back refills by itself."""
        task = asyncio.get_running_loop().create_task(self._give(limit, amount))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _give(self, limit: Limit, amount: float) -> None:
        arguments = [repr(float(value)) for value in (amount, limit.capacity, limit.per_second)]
        try:
            async with patience(self._timeout):
                await self._evaluate(GIVE, [self._key(limit)], arguments)
        except Exception as error:  # a refund is worth no failed request
            _log.info("a refund was lost: %s", error)

    def _key(self, limit: Limit) -> str:
        # One hash slot for all counters, which one script call takes from together.
        return self._prefix + "{q}:" + "\x1f".join(limit.key)
