-- One key holds the TAT of one limit, in microseconds since 1970 by this server. See src/law/lease/mod.rs: `grant`.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cost, step, depth = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local horizon, reach, seen = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local latest = now + depth + horizon - math.min(step, depth)
if seen > now + reach then
    seen = 0
end
local tat = redis.call('GET', KEYS[1])
if tat then
    tat = tonumber(tat)
    if tat > now + reach then
        tat = latest
    end
    tat = math.max(tat, seen)
elseif seen > now + depth then
    tat = latest
else
    tat = seen
end
local base = math.max(tat, now)
local first = base + step - depth - now
if first > horizon then
    return {0, first, base}
end
local after = base + cost
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.max(1, math.ceil((after - now) / 1000)))
return {1, first, after}
