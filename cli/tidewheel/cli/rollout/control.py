"""What `pause`, `resume`, `promote` and `retry` write: ``RoutingTable.spec.control``, and nothing else. Pure.

Every word names the rollout that it was typed for, and is written only onto the table that was read: an `advance` for
one rollout never acts on its successor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tidewheel.cli.errors import CliError
from tidewheel.clients.resources import KubeObject

Wire = Mapping[str, Any]


class ControlRefusedError(CliError):
    """There is nothing that this word could act on; the message says why and what to do instead."""


class Verb(StrEnum):
    """What a person may ask of a rollout."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was typed. ``rollout_id``: refuse any other rollout; empty: whichever runs."""

    verb: Verb
    rollout_id: str = ""
    step: int | None = None
    """Step from 1 that `promote` goes to; None: to the end."""
    only_next: bool = False
    no_rollback: bool = False
    version: str = ""
    """Which rejected version `retry` means, where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlan:
    """One write, and what it means. Without operations there is nothing to do."""

    namespace: str
    model: str
    rollout_id: str
    message: str
    operations: Sequence[dict[str, Any]] = ()

    @property
    def is_needed(self) -> bool:
        """False where it is so already."""
        return bool(self.operations)


def plan_control(request: Request, *, rule: KubeObject, table: KubeObject, actor: str, now: datetime) -> ControlPlan:
    """Raises ControlRefusedError."""
    if request.verb is Verb.RETRY:
        return _retry(request, rule=rule, table=table, actor=actor, now=now)
    rollout = _running(request, rule)
    control = _present(table, rollout)
    if request.verb is Verb.PAUSE:
        wanted, message = _pause(request, rollout, control)
    elif request.verb is Verb.RESUME:
        wanted, message = _resume(rule, rollout, control)
    else:
        wanted, message = _promote(request, rule, rollout)
    return _plan(table, rollout["id"], wanted, message=message, actor=actor, now=now)


def _pause(request: Request, rollout: Wire, control: Wire) -> tuple[Wire | None, str]:
    if control.get("paused") and bool(control.get("noRollback")) == request.no_rollback:
        return None, f"rollout {rollout['id']} is paused already, by {control.get('actor') or 'somebody'}"
    if request.no_rollback:
        return (
            {"paused": True, "noRollback": True},
            f"rollout {rollout['id']} is paused at step {_step(rollout)}, and NOT rolled back whatever the judge says",
        )
    return {"paused": True}, (
        f"rollout {rollout['id']} is paused at step {_step(rollout)}: weight and clock stand still, "
        "a breach still rolls back"
    )


def _resume(rule: KubeObject, rollout: Wire, control: Wire) -> tuple[Wire | None, str]:
    if rule["spec"].get("paused"):
        raise ControlRefusedError(
            f"the RoutingRule itself says paused: true. Set spec.paused to false where {_name(rule)} is kept (Git); "
            "a command cannot overrule it"
        )
    if not control.get("paused"):
        return None, f"rollout {rollout['id']} is not paused"
    return {"paused": False}, f"rollout {rollout['id']} goes on at step {_step(rollout)}; its bake clock was kept"


def _promote(request: Request, rule: KubeObject, rollout: Wire) -> tuple[Wire | None, str]:
    here, steps = _step(rollout), int(rollout["steps"])
    goal = min(here + 1, steps) if request.only_next else request.step or steps
    if goal > steps:
        raise ControlRefusedError(f"rollout {rollout['id']} has {steps} steps; there is no step {goal}")
    if goal < here or (goal == here and request.step is not None):
        raise ControlRefusedError(
            f"rollout {rollout['id']} is at step {here}; promotion goes forward only. "
            f"Back is `kubectl rollback {_name(rule)}`"
        )
    if goal == here:
        return None, f"rollout {rollout['id']} is at its last step, {here}, already"
    what = "to 100 % of its goal" if goal == steps else f"to step {goal}"
    return {"paused": False, "promoteStep": goal}, (
        f"rollout {rollout['id']} goes {what} now: the judge is not waited for, replicas are; a breach still rolls back"
    )


def _retry(request: Request, *, rule: KubeObject, table: KubeObject, actor: str, now: datetime) -> ControlPlan:
    entry = _rejected(request, rule, table)
    rollout: Wire = (rule.get("status") or {}).get("rollout") or {}
    message = f"{entry['version']} is judged again from the first step, with no evidence kept: {entry['reason']}"
    wanted = {"paused": False, "retryDigest": entry["digest"]}
    return _plan(table, rollout.get("id", "none"), wanted, message=message, actor=actor, now=now)


def _rejected(request: Request, rule: KubeObject, table: KubeObject) -> Wire:
    wanted = {target["version"] for target in rule["spec"]["traffic"] if target["percent"]}
    rejected: list[Wire] = list(table["spec"].get("rejected", ()))
    named = [entry for entry in rejected if request.version in ("", entry["version"])]
    candidates = [entry for entry in named if entry["version"] in wanted]
    if not candidates:
        known = ", ".join(sorted({str(entry["version"]) for entry in rejected})) or "none"
        what = f"{request.version} is not both" if request.version else "no version is both"
        raise ControlRefusedError(
            f"{what} rejected and wanted by the RoutingRule {_name(rule)} (rejected: {known}; wanted: "
            f"{', '.join(sorted(wanted))}). Name it in spec.traffic first"
        )
    if len({entry["version"] for entry in candidates}) > 1:
        choices = "|".join(sorted({str(entry["version"]) for entry in candidates}))
        raise ControlRefusedError(f"several versions were rejected: say which, --version {choices}")
    return candidates[-1]


def _running(request: Request, rule: KubeObject) -> Wire:
    rollout: Wire = (rule.get("status") or {}).get("rollout") or {}
    model = _name(rule)
    if not rollout:
        raise ControlRefusedError(f"{model} has had no rollout yet; a change of spec.traffic starts one")
    if request.rollout_id and rollout["id"] != request.rollout_id:
        raise ControlRefusedError(
            f"rollout {request.rollout_id} is over; {model} is at rollout {rollout['id']} now. "
            f"Look with `tidewheel why {model}`, then say it again"
        )
    if rollout.get("outcome") or rollout.get("phase") == "Finished":
        raise ControlRefusedError(
            f"{model} has no rollout running: {rollout['id']} ended {rollout.get('outcome', '')} "
            f"({rollout.get('message', '')})"
        )
    return rollout


def _present(table: KubeObject, rollout: Wire) -> Wire:
    control: Wire = table["spec"].get("control") or {}
    return control if control.get("rolloutId") == rollout["id"] else {}


def _plan(
    table: KubeObject, rollout_id: str, wanted: Wire | None, *, message: str, actor: str, now: datetime
) -> ControlPlan:
    metadata = table["metadata"]
    operations: list[dict[str, Any]] = []
    if wanted is not None:
        at = now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        control = {"rolloutId": rollout_id, **wanted, "actor": actor, "at": at}
        operations = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            {"op": "add", "path": "/spec/control", "value": control},
        ]
    return ControlPlan(
        namespace=metadata["namespace"],
        model=metadata["name"],
        rollout_id=rollout_id,
        message=message,
        operations=operations,
    )


def _step(rollout: Wire) -> int:
    return int(rollout.get("step", 0)) + 1


def _name(rule: KubeObject) -> str:
    return str(rule["metadata"]["name"])
