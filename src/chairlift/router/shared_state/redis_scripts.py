"""Lua scripts that Redis runs: each is one atomic change, timed by the server's clock.

Keys, below a prefix: `tenant:NAME` (a hash: two buckets, and the open requests of each router), `leases` (a sorted set:
a router's connection and when its lease ends), `generation`, `ejections` (a hash), `sessions` and `session_times`. The
arithmetic of the buckets is that of TokenBucket, operation for operation, and tests compare the two.
"""

LEASE_LOST = "lease_lost"
"""Reply to a router whose lease has ended: the other routers no longer count its open requests."""

_NOW = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
"""

_LEASES = """
local function is_alive(owner)
    local ends_at = redis.call('ZSCORE', KEYS[2], owner)
    return ends_at and tonumber(ends_at) > now
end
if not is_alive(ARGV[1]) then return {'lease_lost', '0'} end
"""

_BUCKETS = """
local function text(number) return string.format('%.17g', number) end

local function bucket(name, limit)
    if limit == '' then return nil end
    local per_minute = tonumber(limit)
    local size, level = math.max(1.0, per_minute), nil
    local state = redis.call('HMGET', KEYS[1], name .. '_level', name .. '_at', name .. '_per_minute')
    if state[1] then
        local old = tonumber(state[3])
        local old_size = math.max(1.0, old)
        local elapsed = math.max(0.0, now - tonumber(state[2]))  -- the clock of a new master may be behind
        level = math.min(old_size, tonumber(state[1]) + elapsed * (old / 60.0))
        level = level + (size - old_size)
    else
        level = size
    end
    return {name = name, per_minute = per_minute, size = size, level = level}
end

local function seconds_until(state, amount)
    local missing = math.min(amount, state.size) - state.level
    if missing <= 0 then return 0 end
    return missing / (state.per_minute / 60.0)
end

local function take(state, amount)
    state.level = math.min(state.size, state.level - amount)
end

local day = 86400
local function save(state)
    if not state then return end
    redis.call('HSET', KEYS[1], state.name .. '_level', text(state.level), state.name .. '_at', text(now),
        state.name .. '_per_minute', text(state.per_minute))
    day = math.max(day, math.ceil(seconds_until(state, state.size)))
end

local function set_expiry() redis.call('EXPIRE', KEYS[1], string.format('%.0f', math.min(day, 1e9))) end
"""

CHARGE = (
    _NOW
    + _LEASES
    + _BUCKETS
    + """
-- ARGV: owner, 'check' or 'apply', requests a minute, tokens a minute, open requests at most, and the three amounts
local num_requests, num_tokens, num_open = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local requests, tokens = bucket('requests', ARGV[3]), bucket('tokens', ARGV[4])
local own = 'open:' .. ARGV[1]

local function count_open()
    local fields, sum = redis.call('HGETALL', KEYS[1]), 0
    for i = 1, #fields, 2 do
        if string.sub(fields[i], 1, 5) == 'open:' then
            if is_alive(string.sub(fields[i], 6)) then
                sum = sum + tonumber(fields[i + 1])
            else
                redis.call('HDEL', KEYS[1], fields[i])
            end
        end
    end
    return sum
end

if ARGV[2] == 'check' then
    if ARGV[5] ~= '' and num_open > 0 then
        local sum = count_open()
        if sum >= tonumber(ARGV[5]) then return {'open_limit', text(sum)} end
    end
    if requests and num_requests > 0 then
        local seconds = seconds_until(requests, num_requests)
        if seconds > 0 then return {'requests_limit', text(seconds)} end
    end
    if tokens then
        local seconds = seconds_until(tokens, num_tokens)
        if seconds > 0 then return {'tokens_limit', text(seconds)} end
    end
end
if requests then take(requests, num_requests) end
if tokens then take(tokens, num_tokens) end
save(requests)
save(tokens)
if num_open ~= 0 and redis.call('HINCRBY', KEYS[1], own, num_open) <= 0 then redis.call('HDEL', KEYS[1], own) end
set_expiry()
return {'taken', '0'}
"""
)
"""KEYS: tenant, leases. Returns outcome and value of a ChargeReply."""

RECONCILE = (
    _NOW
    + _LEASES
    + _BUCKETS
    + """
-- ARGV: owner, requests a minute, tokens a minute, open requests; unshared and in use: requests, then tokens
local own = 'open:' .. ARGV[1]
local function join(state, unshared, in_use)
    if not state then return end
    state.level = math.min(state.level - tonumber(unshared), state.size - tonumber(in_use))
    save(state)
end
join(bucket('requests', ARGV[2]), ARGV[5], ARGV[6])
join(bucket('tokens', ARGV[3]), ARGV[7], ARGV[8])
if tonumber(ARGV[4]) > 0 then
    redis.call('HSET', KEYS[1], own, ARGV[4])
else
    redis.call('HDEL', KEYS[1], own)
end
if redis.call('EXISTS', KEYS[1]) == 1 then set_expiry() end
return {'taken', '0'}
"""
)
"""KEYS: tenant, leases. Subtracts what was used unshared; also restores the level if Redis has lost its data."""

RENEW_LEASE = (
    _NOW
    + """
-- ARGV: owner, seconds of the lease, '1' for a new lease, the owner of this router's former lease, a random text
local ends_at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if ARGV[3] ~= '1' and not (ends_at and tonumber(ends_at) > now) then return {'lease_lost', '0'} end
if ARGV[4] ~= '' then redis.call('ZREM', KEYS[1], ARGV[4]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.17g', now))
redis.call('ZADD', KEYS[1], string.format('%.17g', now + tonumber(ARGV[2])), ARGV[1])
redis.call('SETNX', KEYS[3], ARGV[5])
local reply, fields = {'taken', redis.call('GET', KEYS[3])}, redis.call('HGETALL', KEYS[2])
for i = 1, #fields, 2 do
    local until_text, reason = string.match(fields[i + 1], '^(%S+) (.*)$')
    local seconds = tonumber(until_text) - now
    if seconds > 0 then
        reply[#reply + 1] = fields[i]
        reply[#reply + 1] = string.format('%.17g', seconds)
        reply[#reply + 1] = reason
    else
        redis.call('HDEL', KEYS[2], fields[i])
    end
end
return reply
"""
)
"""KEYS: leases, ejections, generation. Returns the outcome, the generation, which is another one after a loss of all
data, and field, seconds left and reason of each ejection."""

END_LEASE = "redis.call('ZREM', KEYS[1], ARGV[1])\nreturn {'taken', '0'}"
"""KEYS: leases. ARGV: owner."""

EJECT = (
    _NOW
    + """
-- ARGV: channel, message, field, seconds ('0' takes the ejection back), reason
local seconds = tonumber(ARGV[4])
if seconds > 0 then
    redis.call('HSET', KEYS[1], ARGV[3], string.format('%.17g', now + seconds) .. ' ' .. ARGV[5])
    local milliseconds = math.ceil(seconds * 1000)
    if redis.call('PTTL', KEYS[1]) < milliseconds then redis.call('PEXPIRE', KEYS[1], milliseconds) end
else
    redis.call('HDEL', KEYS[1], ARGV[3])
end
redis.call('PUBLISH', ARGV[1], ARGV[2])
return {'taken', '0'}
"""
)
"""KEYS: ejections. The hash expires with its last ejection."""

_SESSIONS = (
    _NOW
    + """
-- ARGV: session, seconds until an unused session expires, number of sessions at most, replica, the replica to replace
local ttl = tonumber(ARGV[2])
local used_at = redis.call('ZSCORE', KEYS[2], ARGV[1])
local current = used_at and tonumber(used_at) + ttl > now and redis.call('HGET', KEYS[1], ARGV[1])
local function use()
    redis.call('ZADD', KEYS[2], string.format('%.17g', now), ARGV[1])
    redis.call('EXPIRE', KEYS[1], math.ceil(ttl))
    redis.call('EXPIRE', KEYS[2], math.ceil(ttl))
end
local function forget(sessions)
    if #sessions == 0 then return end
    redis.call('HDEL', KEYS[1], unpack(sessions))
    redis.call('ZREM', KEYS[2], unpack(sessions))
end
"""
)

GET_SESSION = (
    _SESSIONS
    + """
if not current then
    forget({ARGV[1]})
    return {'taken', ''}
end
use()
return {'taken', current}
"""
)
"""KEYS: sessions, session_times. Returns the replica, or an empty text."""

ASSIGN_SESSION = (
    _SESSIONS
    + """
if not current or current == ARGV[5] then
    current = ARGV[4]
    redis.call('HSET', KEYS[1], ARGV[1], current)
end
use()
forget(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.17g', now - ttl), 'LIMIT', 0, 100))
local excess = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[3])
if excess > 0 then forget(redis.call('ZRANGE', KEYS[2], 0, math.min(excess, 1000) - 1)) end
return {'taken', current}
"""
)
"""KEYS: sessions, session_times. Returns the replica that the session has now."""

SCRIPTS = (CHARGE, RECONCILE, RENEW_LEASE, END_LEASE, EJECT, GET_SESSION, ASSIGN_SESSION)
