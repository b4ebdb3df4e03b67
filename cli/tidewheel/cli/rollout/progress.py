"""A rollout as it stands, read from the objects as the API server sends them. Pure.

Everything may be absent: a program on a laptop meets clusters that are older and younger than itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tidewheel.clients.resources import KubeObject

Wire = Mapping[str, Any]

_GOOD_OUTCOMES: Final = frozenset({"Promoted", "FastPromoted"})
_HELD_REASONS: Final = frozenset({"Paused", "Held", "RollbackForbidden"})
"""What only a person ends."""


class Standing(StrEnum):
    """Where a rollout is, as exit statuses tell it apart."""

    UNSEEN = "unseen"
    """The operator has not answered the rule as it is now."""
    MOVING = "moving"
    WAITING_FOR_PERSON = "waiting for a person"
    DONE = "done"
    """Traffic is as the rule wants it."""
    FAILED = "failed"
    """Rolled back, superseded, refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One model's rollout. ``step`` counts from 1; times in seconds; empty strings for what is not known."""

    namespace: str
    model: str
    standing: Standing
    headline: str
    rollout_id: str = ""
    phase: str = ""
    outcome: str = ""
    split: str = ""
    step: int = 0
    steps: int = 0
    share: float = 0.0
    observed_share: float | None = None
    baked_seconds: float = 0.0
    bake_seconds: float = 0.0
    verdict: str = ""
    message: str = ""
    metrics: Sequence[Wire] = ()
    report: Sequence[str] = ()
    """The last verdict in the operator's own lines."""
    plan: Sequence[str] = ()
    """What each step can tell at this traffic, as said before the start."""
    history: Sequence[Wire] = ()
    notes: Sequence[str] = ()

    @property
    def is_running(self) -> bool:
        """Between its first step and its end."""
        return bool(self.rollout_id) and not self.outcome and self.phase != "Finished"


def progress_of(rule: KubeObject | None, table: KubeObject | None, *, namespace: str, model: str) -> Progress:
    """The present state of a model's rollout; ``rule`` or ``table`` None where there is none."""
    if rule is None:
        gone = "there is no RoutingRule of that name: nothing says where its traffic should go"
        return Progress(namespace=namespace, model=model, standing=Standing.FAILED, headline=gone)
    rollout: Wire = (rule.get("status") or {}).get("rollout") or {}
    standing, headline = _standing(rule, table, rollout)
    return Progress(
        namespace=namespace,
        model=model,
        standing=standing,
        headline=headline,
        rollout_id=rollout.get("id", ""),
        phase=rollout.get("phase", ""),
        outcome=rollout.get("outcome", ""),
        split=in_words(table["spec"]["targets"]) if table else "",
        step=int(rollout.get("step", 0)) + 1 if rollout else 0,
        steps=int(rollout.get("steps", 0)),
        share=_weight(table, rollout.get("canary")) / 10_000,
        observed_share=rollout.get("observedShare"),
        baked_seconds=float(rollout.get("bakedSeconds", 0.0)),
        bake_seconds=float(rollout.get("bakeSeconds", 0.0)),
        verdict=rollout.get("verdict", ""),
        message=rollout.get("message", ""),
        metrics=rollout.get("metrics") or (),
        report=rollout.get("report") or (),
        plan=rollout.get("plan") or (),
        history=rollout.get("history") or (),
        notes=_notes(rule, table, rollout),
    )


def in_words(targets: Sequence[Wire]) -> str:
    """``v42:95% v43:5%``, the largest share first."""
    carried = sorted((target for target in targets if target["weight"]), key=lambda target: -int(target["weight"]))
    return " ".join(f"{target['version']}:{int(target['weight']) / 100:g}%" for target in carried)


def condition(item: KubeObject, kind: str) -> Wire | None:
    """The condition of that type, if it is True for the object as it is now."""
    for entry in (item.get("status") or {}).get("conditions", ()):
        if entry["type"] == kind and entry["status"] == "True":
            return dict(entry)
    return None


def is_unseen(rule: KubeObject) -> bool:
    """The operator has not answered this generation of the rule."""
    seen = (rule.get("status") or {}).get("observedGeneration") or 0
    return int(seen) < int(rule["metadata"].get("generation", 0))


def _standing(rule: KubeObject, table: KubeObject | None, rollout: Wire) -> tuple[Standing, str]:
    if is_unseen(rule):
        return Standing.UNSEEN, "the operator has not seen this rule yet"
    stalled, degraded = condition(rule, "Stalled"), condition(rule, "Degraded")
    if rollout and not rollout.get("outcome") and rollout.get("phase") != "Finished":
        return _while_running(rule, table, rollout, stalled)
    if stalled is not None or degraded is not None:
        bad = stalled or degraded or {}
        return Standing.FAILED, f"{bad['reason']}: {bad.get('message', '')}"
    if table is not None and _is_reached(rule, table):
        how = f"{rollout['outcome']}: {rollout.get('message', '')}" if rollout.get("outcome") else "as the rule wants"
        return Standing.DONE, f"traffic is {in_words(table['spec']['targets'])}, {how}"
    if rollout.get("outcome") and rollout["outcome"] not in _GOOD_OUTCOMES:
        return Standing.FAILED, f"{rollout['outcome']}: {rollout.get('message', '')}"
    return Standing.MOVING, "traffic is not as the rule wants it yet"


def _while_running(
    rule: KubeObject, table: KubeObject | None, rollout: Wire, stalled: Wire | None
) -> tuple[Standing, str]:
    words = rollout.get("message", "")
    asked = rule["spec"].get("paused") or _control(table, rollout).get("paused")
    if asked or rollout.get("suspended") or rollout.get("reason") in _HELD_REASONS:
        return Standing.WAITING_FOR_PERSON, words
    if stalled is not None:
        return Standing.WAITING_FOR_PERSON, f"{stalled['reason']}: {stalled.get('message') or words}"
    return Standing.MOVING, words


def _notes(rule: KubeObject, table: KubeObject | None, rollout: Wire) -> list[str]:
    """What a person should know beside the numbers, with what to type."""
    model, notes = rule["metadata"]["name"], []
    if rule["spec"].get("paused"):
        notes.append("paused by spec.paused of the RoutingRule: resume it where that is edited (Git)")
    control = _control(table, rollout)
    if control.get("paused"):
        breach = "a breach does NOT roll back" if control.get("noRollback") else "a breach still rolls back"
        notes.append(f"paused by {control.get('actor') or 'somebody'}: `tidewheel resume {model}` goes on; {breach}")
    if control.get("promoteStep") and not control.get("paused"):
        notes.append(f"{control.get('actor') or 'somebody'} promotes it to step {control['promoteStep']}")
    degraded = condition(rule, "Degraded")
    if degraded is not None:
        notes.append(f"{degraded['reason']}: {degraded.get('message', '')}")
    wanted = {target["version"] for target in rule["spec"]["traffic"] if target["percent"]}
    notes += [
        f"{entry['version']} is rejected: {entry['reason']} (`tidewheel retry {model}` tries it again)"
        for entry in (table["spec"] if table else {}).get("rejected", ())
        if entry["version"] in wanted
    ]
    return notes


def _control(table: KubeObject | None, rollout: Wire) -> Wire:
    """What a person asked of this very rollout; words to another one are none."""
    control: Wire = (table["spec"].get("control") if table else None) or {}
    return control if rollout and control.get("rolloutId") == rollout.get("id") else {}


def _is_reached(rule: KubeObject, table: KubeObject) -> bool:
    wanted = {target["version"]: target["percent"] * 100 for target in rule["spec"]["traffic"] if target["percent"]}
    return wanted == {target["version"]: target["weight"] for target in table["spec"]["targets"] if target["weight"]}


def _weight(table: KubeObject | None, version: str | None) -> int:
    targets = table["spec"]["targets"] if table else ()
    return next((int(target["weight"]) for target in targets if target["version"] == version), 0)
