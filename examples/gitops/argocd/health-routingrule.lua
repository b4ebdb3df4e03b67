-- Argo CD health of tidewheel.dev/RoutingRule:
--   Progressing  a rollout moves, or the operator has not answered this generation yet
--   Suspended    it waits for a person: paused, or held beyond its patience
--   Degraded     rolled back, refused, or a version that takes traffic has nobody to serve it
--   Healthy      traffic is as spec.traffic wants it
local function condition(name)
  if obj.status == nil or obj.status.conditions == nil then
    return nil
  end
  for _, entry in ipairs(obj.status.conditions) do
    if entry.type == name then
      return entry
    end
  end
  return nil
end

local function is_true(entry)
  return entry ~= nil and entry.status == "True"
end

local function words(entry)
  if entry.message == nil or entry.message == "" then
    return entry.reason
  end
  return entry.reason .. ": " .. entry.message
end

local status = obj.status or {}
local observed = status.observedGeneration or -1
if observed < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "the operator has not seen this generation yet"}
end

local rollout = status.rollout
local running = rollout ~= nil and rollout.outcome == nil and rollout.phase ~= "Finished"
if running and (rollout.suspended == true or obj.spec.paused == true) then
  return {status = "Suspended", message = rollout.message or "waits for a person"}
end

local stalled, degraded = condition("Stalled"), condition("Degraded")
if is_true(stalled) then
  return {status = "Degraded", message = words(stalled)}
end
if is_true(degraded) then
  return {status = "Degraded", message = words(degraded)}
end
if running then
  return {status = "Progressing", message = rollout.message or rollout.phase}
end
local moving, ready = condition("Reconciling"), condition("Ready")
if is_true(moving) then
  return {status = "Progressing", message = words(moving)}
end
if is_true(ready) then
  return {status = "Healthy", message = ready.message or ""}
end
return {status = "Progressing", message = ready ~= nil and words(ready) or "no condition yet"}
