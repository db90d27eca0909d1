-- One key holds the TAT of one limit, in microseconds since 1970 by this server. See src/law/lease/mod.rs: `grant`.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cost, step, depth, horizon = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local tat = redis.call('GET', KEYS[1])
tat = tat and tonumber(tat) or 0
local base = math.min(math.max(tat, now), now + depth + horizon + cost)
local first = base + step - depth - now
if first > horizon then
    return {0, first, base - now}
end
local after = base + cost
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.max(1, math.ceil((after - now) / 1000)))
return {1, first, after - now}
