-- One hash holds the blocks of one limit: for each node 'held:want:ends'. See src/law/block.rs: `Blocks::renew`.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local node, running, want, limit, life = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local fields = redis.call('HGETALL', KEYS[1])
local others, nodes, less, rest = 0, 1, {}, 0
for i = 1, #fields, 2 do
    if fields[i] ~= node then
        local held, wants, ends = string.match(fields[i + 1], '^(%d+):(%d+):(%d+)$')
        if not held or tonumber(ends) <= now then
            redis.call('HDEL', KEYS[1], fields[i])
        else
            held, wants = tonumber(held), tonumber(wants)
            others = others + held
            nodes = nodes + 1
            if wants <= want then
                table.insert(less, wants)
            else
                rest = rest + 1
            end
        end
    end
end
table.sort(less)
local left = limit
for i, wants in ipairs(less) do
    left = left - math.min(wants, math.floor(left / (#less - i + 2 + rest)))
end
local target = math.min(want, math.floor(left / (rest + 1)))
local held = math.min(math.max(limit - others, 0), math.max(running, target))
if held == 0 and want == 0 then
    redis.call('HDEL', KEYS[1], node)
else
    redis.call('HSET', KEYS[1], node, string.format('%.0f:%.0f:%.0f', held, want, now + life))
    redis.call('PEXPIRE', KEYS[1], math.ceil(life / 1000) + 1)
end
return {held, target, nodes}
