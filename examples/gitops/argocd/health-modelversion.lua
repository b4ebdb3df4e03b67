-- Argo CD health of tidewheel.dev/ModelVersion:
--   Progressing  replicas come or go
--   Degraded     a replica cannot start, or the spec cannot be run
--   Healthy      as many replicas serve as are wanted; none is wanted of an idle version
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

local stalled, degraded = condition("Stalled"), condition("Degraded")
if is_true(stalled) then
  return {status = "Degraded", message = words(stalled)}
end
if is_true(degraded) then
  return {status = "Degraded", message = words(degraded)}
end
local moving, ready = condition("Reconciling"), condition("Ready")
if is_true(moving) then
  return {status = "Progressing", message = words(moving)}
end
if is_true(ready) then
  return {status = "Healthy", message = ready.message or ""}
end
return {status = "Progressing", message = ready ~= nil and words(ready) or "no condition yet"}
