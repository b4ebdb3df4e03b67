"""What runs inside the store, each in one step that nothing can interrupt."""

from typing import Final

APPEND: Final = """
-- KEYS: logs. ARGV: for each the length that it must have, and what to append. Returns the numbers of those refused:
-- another gateway has taken the reply over, or the log is gone.
local refused = {}
for i, key in ipairs(KEYS) do
  if redis.call('STRLEN', key) == tonumber(ARGV[2 * i - 1]) then
    redis.call('APPEND', key, ARGV[2 * i])
  else
    refused[#refused + 1] = i
  end
end
return refused
"""

CREATE: Final = """
-- KEYS: idempotency key, reply, log, replies of the owner, replies of the user.
-- ARGV: id, body hash, whether there is a key, owner, record, log's beginning, milliseconds to keep, scope.
-- Returns what the key stands for already, or nothing.
if ARGV[3] == '1' then
  local known = redis.call('GET', KEYS[1])
  if known then return known end
  redis.call('SET', KEYS[1], ARGV[1] .. '|' .. ARGV[2], 'PX', ARGV[7])
end
redis.call('HSET', KEYS[2], 'owner', ARGV[4], 'record', ARGV[5], 'scope', ARGV[8], 'key', KEYS[1])
redis.call('PEXPIRE', KEYS[2], ARGV[7])
redis.call('SET', KEYS[3], ARGV[6], 'PX', ARGV[7])
redis.call('SADD', KEYS[4], ARGV[1])
redis.call('SADD', KEYS[5], ARGV[1])
redis.call('PEXPIRE', KEYS[5], ARGV[7])
return false
"""

END: Final = """
-- KEYS: reply, log, final text, replies of the owner. ARGV: id, owner, final text, milliseconds to keep events
-- and text, whether the key is free again. Returns 1, or 0 when another gateway owns the reply.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[2] then return 0 end
redis.call('SREM', KEYS[4], ARGV[1])
if ARGV[6] == '1' then
  redis.call('DEL', redis.call('HGET', KEYS[1], 'key'), KEYS[1], KEYS[2])
  return 1
end
redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[5])
redis.call('HSET', KEYS[1], 'ended', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return 1
"""

TAKE: Final = """
-- KEYS: reply, log, replies of the new owner. ARGV: id, new owner, prefix of gateways' signs of life, prefix of their
-- replies, a mark for the log. Returns the record and the log, or nothing: ended, gone, or its owner lives.
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner or redis.call('HEXISTS', KEYS[1], 'ended') == 1 or owner == ARGV[2] then return false end
if redis.call('EXISTS', ARGV[3] .. owner) == 1 or redis.call('EXISTS', KEYS[2]) == 0 then return false end
redis.call('HSET', KEYS[1], 'owner', ARGV[2])
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('APPEND', KEYS[2], ARGV[5])
redis.call('SREM', ARGV[4] .. owner, ARGV[1])
redis.call('SADD', KEYS[3], ARGV[1])
return {redis.call('HGET', KEYS[1], 'record'), redis.call('GET', KEYS[2]), redis.call('HGET', KEYS[1], 'scope')}
"""
