"""What to say about the objects of a namespace: pure, from objects as the API server sends them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from tidewheel.clients.resources import KubeObject

_PROBLEM_TYPES: Final = ("Stalled", "Degraded")
"""Conditions that are bad news when True; of the others, False is."""


class Mood(StrEnum):
    """How a line is coloured."""

    GOOD = "good"
    WAITING = "waiting"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class VersionLine:
    """One version of a model."""

    namespace: str
    model: str
    version: str
    phase: str
    ready: str
    share: str
    wanted: str
    age: str
    mood: Mood
    message: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model: its versions, and sentences about the split."""

    namespace: str
    model: str
    versions: Sequence[VersionLine]
    notes: Sequence[str]


def report(
    *,
    versions: Iterable[KubeObject],
    rules: Iterable[KubeObject],
    tables: Iterable[KubeObject],
    now: datetime,
    model: str | None = None,
) -> list[ModelReport]:
    """Every model that any object names, or only ``model``."""
    rules_by_key = {_key(rule): rule for rule in rules}
    tables_by_key = {_key(table): table for table in tables}
    versions_by_key: dict[tuple[str, str], list[KubeObject]] = {}
    for version in versions:
        versions_by_key.setdefault((version["metadata"]["namespace"], version["spec"]["model"]), []).append(version)
    keys = sorted(versions_by_key.keys() | rules_by_key.keys() | tables_by_key.keys())
    return [
        _model(key, versions_by_key.get(key, []), rules_by_key.get(key), tables_by_key.get(key), now=now)
        for key in keys
        if model is None or key[1] == model
    ]


def _model(
    key: tuple[str, str],
    versions: Sequence[KubeObject],
    rule: KubeObject | None,
    table: KubeObject | None,
    *,
    now: datetime,
) -> ModelReport:
    shares = {t["version"]: t["weight"] for t in table["spec"]["targets"]} if table else {}
    wanted = {t["version"]: t["percent"] for t in rule["spec"]["traffic"]} if rule else {}
    lines = [_version(version, shares, wanted, now=now) for version in versions]
    lines.sort(key=lambda line: (-shares.get(line.version, 0), line.version))
    named = {line.version for line in lines}
    missing = [v for v in {**shares, **wanted} if v not in named and (shares.get(v) or wanted.get(v))]
    notes = [f"{version} is named by the split, but there is no ModelVersion {key[1]}-{version}" for version in missing]
    return ModelReport(*key, lines, notes + _rule_notes(rule, table, now=now))


def _version(
    version: KubeObject, shares: Mapping[str, int], wanted: Mapping[str, int], *, now: datetime
) -> VersionLine:
    metadata, spec, status = version["metadata"], version["spec"], version.get("status") or {}
    name = spec["version"]
    mood, message = _health(version)
    desired = status.get("desiredReplicas", 0)
    return VersionLine(
        namespace=metadata["namespace"],
        model=spec["model"],
        version=name,
        phase=status.get("phase") or "-",
        ready=f"{status.get('readyReplicas', 0)}/{desired}" + _draining(status),
        share=f"{shares[name] / 100:g}%" if name in shares else "-",
        wanted=f"{wanted[name]}%" if name in wanted else "-",
        age=age(metadata["creationTimestamp"], now=now),
        mood=mood,
        message=message,
    )


def _draining(status: Mapping[str, Any]) -> str:
    return f" (+{status['drainingReplicas']} leaving)" if status.get("drainingReplicas") else ""


def _health(item: KubeObject) -> tuple[Mood, str]:
    """The worst news among the conditions, in the operator's words."""
    if item["metadata"].get("deletionTimestamp"):
        return Mood.WAITING, "being deleted; it stays until it carries no traffic and its streams have ended"
    conditions = _conditions(item)
    if not conditions:
        return Mood.WAITING, "the operator has not looked at it yet"
    for kind in (*_PROBLEM_TYPES, "Accepted"):
        condition = conditions.get(kind)
        if condition and (condition["status"] == "True") == (kind in _PROBLEM_TYPES):
            return Mood.BAD, _sentence(condition)
    ready = conditions.get("Ready", {"status": "Unknown", "reason": "Unknown"})
    if ready["status"] == "True":
        return Mood.GOOD, _sentence(ready) if _is_stale(item, ready) else ""
    reconciling = conditions.get("Reconciling")
    telling = reconciling if reconciling and reconciling["status"] == "True" else ready
    return Mood.WAITING, _sentence(telling)


def _rule_notes(rule: KubeObject | None, table: KubeObject | None, *, now: datetime) -> list[str]:
    if rule is None and table is None:
        return ["no RoutingRule: nothing is routed to it"]
    notes = []
    if rule is None:
        notes.append("the RoutingRule is gone; its last split stays in force for a while")
    else:
        mood, message = _health(rule)
        if mood is not Mood.GOOD and message:
            notes.append(message)
        armed = _conditions(rule).get("RollbackArmed")
        if armed and armed["status"] == "True":
            notes.append(_sentence(armed))
    if table is not None:
        cause = table["spec"].get("cause") or {}
        if cause:
            text = cause.get("message") or cause["reason"]
            notes.append(f"this split: {text} ({cause['actor']}, {age(cause['at'], now=now)} ago)")
        notes += [f"{entry['version']} is rejected: {entry['reason']}" for entry in table["spec"].get("rejected", ())]
    return notes


def age(timestamp: str, *, now: datetime) -> str:
    """How long ago, in one unit as kubectl says it."""
    seconds = max(0, int((now - datetime.fromisoformat(timestamp)).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _key(item: KubeObject) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["spec"]["model"]


def _conditions(item: KubeObject) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in (item.get("status") or {}).get("conditions", ())}


def _is_stale(item: KubeObject, condition: Mapping[str, Any]) -> bool:
    return bool(condition.get("observedGeneration", 0) < item["metadata"].get("generation", 0))


def _sentence(condition: Mapping[str, Any]) -> str:
    return str(condition.get("message") or condition["reason"])
