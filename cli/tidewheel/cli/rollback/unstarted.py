"""A rollout whose new version has no traffic: going back means that it gets none, not that the split changes.

The table alone cannot tell: until a rollout writes its first weight, ``previous`` is the split before the one in force.
Its progress in the RoutingRule can. Nobody waits for that: a rollback whose rule cannot be read goes by the table.
"""

from collections.abc import Mapping
from typing import Any, Final

Wire = Mapping[str, Any]

_FINISHED: Final = "Finished"


def unstarted_canary(rule: Wire | None, spec: Wire) -> Wire | None:
    """``version`` and ``digest`` of what waits for its first share, or for replicas after it lost them; else None."""
    rollout: Wire = ((rule or {}).get("status") or {}).get("rollout") or {}
    if not rollout.get("canaryDigest") or rollout.get("phase") == _FINISHED:
        return None
    in_force = {str(target["version"]): int(target["weight"]) for target in spec["targets"] if target["weight"]}
    kept = {target["digest"] for target in spec["targets"] if target["weight"]}
    if in_force != rollout.get("from") or rollout["canaryDigest"] in kept:
        return None
    return {"version": rollout["canary"], "digest": rollout["canaryDigest"]}
