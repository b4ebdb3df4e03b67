"""What a rollback writes: a pure function of the RoutingTable that was read.

It works on the object as it is on the wire, not on our records: the plugin on a laptop may be older than the cluster,
and a target that it copies back must keep the fields it has never heard of.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tidewheel.cli.errors import CliError
from tidewheel.cli.rollback.unstarted import unstarted_canary

Wire = Mapping[str, Any]
Split = Sequence[Wire]

TOTAL_BASIS_POINTS: Final = 10_000
MAX_REJECTED: Final = 32
MAX_REASON: Final = 1024
DEFAULT_KEEP_PREVIOUS_SECONDS: Final = 900


class RollbackRefusedError(CliError):
    """The table allows no such rollback; the message says why and what to type instead."""


class ColdTargetError(RollbackRefusedError):
    """Versions that would get traffic are not kept warm; whoever knows that they have replicas may plan again."""


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """One write to one RoutingTable, and what it means."""

    namespace: str
    model: str
    before: Split
    after: Split
    rejected: Sequence[str]
    operations: Sequence[dict[str, Any]]
    """JSON patch; empty when the table already says what was asked for."""
    message: str

    @property
    def is_needed(self) -> bool:
        """False when the split asked for is in force already."""
        return bool(self.operations)


def describe(split: Split) -> str:
    """The split in the words of the columns: ``v1:90% v2:10%``."""
    carried = sorted((target for target in split if target["weight"]), key=lambda target: -int(target["weight"]))
    return " ".join(f"{target['version']}:{target['weight'] / 100:g}%" for target in carried)


def plan_rollback(
    table: Wire,
    *,
    actor: str,
    now: datetime,
    to: str | None = None,
    reason: str = "",
    ready: Collection[str] = (),
    allow_cold: bool = False,
    rule: Wire | None = None,
) -> RollbackPlan:
    """Back to the previous split, or wholly to the version ``to``; raises RollbackRefusedError.

    A version that loses weight is rejected, so that the operator does not bring it back from Git. Versions that are
    neither kept warm nor known to be ``ready`` raise ColdTargetError, unless ``allow_cold``: their requests would fail.
    ``rule`` tells of a rollout that has given its version nothing yet: that version is rejected, the split stays.
    """
    spec, metadata = table["spec"], table["metadata"]
    model = str(metadata["name"])
    if not to and (canary := unstarted_canary(rule, spec)) is not None:
        return _stay(table, canary, actor=actor, now=now, reason=reason)
    after = _whole(spec, to, model=model) if to else _previous(spec, model=model)
    losers = _losers(spec["targets"], after)
    # What is byte for byte the way back cannot be what is wrong.
    rejected = [target for target in losers if target["digest"] not in _digests(after)]
    is_needed = bool(losers) or _is_rejected(spec, to)
    if is_needed and not allow_cold:
        _require_warm(spec, after, ready, model=model)
    message = _message(spec["targets"], after, reason=reason) if losers else f"{model} already sends {describe(after)}"
    return RollbackPlan(
        namespace=metadata["namespace"],
        model=model,
        before=spec["targets"],
        after=after,
        rejected=[str(target["version"]) for target in rejected],
        operations=_operations(table, after, rejected, actor=actor, message=message, now=now) if is_needed else [],
        message=message,
    )


def _stay(table: Wire, canary: Wire, *, actor: str, now: datetime, reason: str) -> RollbackPlan:
    """The split in force is the one to go back to; ``previous`` and what is kept warm stay as they are."""
    spec, metadata = table["spec"], table["metadata"]
    split = [target for target in spec["targets"] if target["weight"]]
    is_needed = all(entry["digest"] != canary["digest"] for entry in spec.get("rejected", ()))
    model, version = str(metadata["name"]), str(canary["version"])
    message = f"rolled back before {version} got traffic; {describe(split)} stays"
    message = (f"{message}: {reason}" if reason else message)[:MAX_REASON]
    values = _values(spec, split, [canary], actor=actor, message=message, at=_timestamp(now))
    return RollbackPlan(
        namespace=metadata["namespace"],
        model=model,
        before=split,
        after=split,
        rejected=[version] if is_needed else [],
        operations=_patch(table, values) if is_needed else [],
        message=message if is_needed else f"{model} already sends {describe(split)}, and {version} is rejected",
    )


def _previous(spec: Wire, *, model: str) -> Split:
    """The split before this one, without what was rejected meanwhile: a rollback typed twice must not undo itself."""
    rejected = {entry["digest"] for entry in spec.get("rejected", ())}
    carried = [target for target in spec.get("previous", ()) if target["weight"]]
    if not carried:
        raise RollbackRefusedError(
            f"{model} has had no other split yet, so there is nothing to go back to. "
            f"It sends {describe(spec['targets'])}." + _choices(spec, model)
        )
    allowed = [target for target in carried if target["digest"] not in rejected]
    if not allowed:
        names = ", ".join(str(target["version"]) for target in carried)
        raise RollbackRefusedError(
            f"The previous split of {model} only names versions that were rejected: {names}. "
            f"`kubectl rollback {model} --to {carried[0]['version']}` goes there anyway."
        )
    return _scaled(allowed)


def _whole(spec: Wire, version: str, *, model: str) -> Split:
    for target in (*spec["targets"], *spec.get("previous", ()), *spec.get("keepWarm", ())):
        if target["version"] == version:
            return [{key: value for key, value in target.items() if key != "until"} | {"weight": TOTAL_BASIS_POINTS}]
    raise RollbackRefusedError(
        f"{version} neither carries traffic of {model} nor is kept as its rollback target."
        + (_choices(spec, model) or f" Put it into the RoutingRule {model}: the operator starts its replicas first.")
    )


def _choices(spec: Wire, model: str) -> str:
    carried = {target["version"] for target in spec["targets"] if target["weight"] == TOTAL_BASIS_POINTS}
    known = {target["version"] for part in ("targets", "previous", "keepWarm") for target in spec.get(part, ())}
    choices = sorted(known - carried)
    return f" Possible: `kubectl rollback {model} --to {'|'.join(choices)}`." if choices else ""


def _scaled(targets: Split) -> Split:
    """The same proportions over all traffic; largest remainders get the basis points that rounding leaves."""
    total = sum(int(target["weight"]) for target in targets)
    shares = [divmod(int(target["weight"]) * TOTAL_BASIS_POINTS, total) for target in targets]
    spare = TOTAL_BASIS_POINTS - sum(share for share, _ in shares)
    lucky = sorted(range(len(shares)), key=lambda index: -shares[index][1])[:spare]
    return [
        {**target, "weight": share + (index in lucky)}
        for index, (target, (share, _)) in enumerate(zip(targets, shares, strict=True))
    ]


def _weights(split: Split) -> dict[str, int]:
    return {str(target["version"]): int(target["weight"]) for target in split if target["weight"]}


def _losers(before: Split, after: Split) -> Split:
    kept = _weights(after)
    return [target for target in before if target["weight"] > kept.get(target["version"], 0)]


def _is_rejected(spec: Wire, version: str | None) -> bool:
    return version is not None and any(entry["version"] == version for entry in spec.get("rejected", ()))


def _require_warm(spec: Wire, after: Split, ready: Collection[str], *, model: str) -> None:
    if cold := [version for version in _cold(spec, after) if version not in ready]:
        raise ColdTargetError(
            f"{', '.join(cold)} is not kept warm and no gateway knows a ready replica of it: requests would fail until "
            f"one has started. Put it into the RoutingRule {model} (the operator starts replicas first), or repeat "
            "with --cold."
        )


def _cold(spec: Wire, after: Split) -> list[str]:
    # Presence in keepWarm counts, not `until`: the operator removes what has run out, and its replicas only after that.
    warm = _weights(spec["targets"]).keys() | {entry["version"] for entry in spec.get("keepWarm", ())}
    return [str(target["version"]) for target in after if target["version"] not in warm]


def _message(before: Split, after: Split, *, reason: str) -> str:
    text = f"rolled back from {describe(before)} to {describe(after)}"
    return (f"{text}: {reason}" if reason else text)[:MAX_REASON]


def _operations(
    table: Wire, after: Split, rejected: Split, *, actor: str, message: str, now: datetime
) -> list[dict[str, Any]]:
    spec, at = table["spec"], _timestamp(now)
    values = {
        "targets": list(after),
        "previous": list(spec["targets"]),
        "keepWarm": _kept_warm(spec, after, now=now),
        **_values(spec, after, rejected, actor=actor, message=message, at=at),
    }
    return _patch(table, values)


def _values(spec: Wire, after: Split, rejected: Split, *, actor: str, message: str, at: str) -> dict[str, Any]:
    return {
        "rejected": _rejections(spec, after, rejected, message=message, at=at),
        "cause": {"actor": actor, "reason": "Rollback", "message": message, "at": at},
    }


def _patch(table: Wire, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": table["metadata"]["resourceVersion"]},
        *({"op": "add", "path": f"/spec/{field}", "value": value} for field, value in values.items()),
    ]


def _rejections(spec: Wire, after: Split, rejected: Split, *, message: str, at: str) -> list[Wire]:
    changed = _digests(after) | _digests(rejected)
    kept = [entry for entry in spec.get("rejected", ()) if entry["digest"] not in changed]
    new = [{"digest": t["digest"], "version": t["version"], "reason": message, "at": at} for t in rejected]
    return (kept + new)[-MAX_REJECTED:]


def _kept_warm(spec: Wire, after: Split, *, now: datetime) -> list[Wire]:
    serving, gained = _weights(spec["targets"]), _weights(after)
    gone = {target["version"] for target in _losers(spec["targets"], after)}
    kept_for = timedelta(seconds=spec.get("keepPreviousSeconds", DEFAULT_KEEP_PREVIOUS_SECONDS))
    until = _timestamp(now + kept_for)
    kept: list[Wire] = []
    for entry in spec.get("keepWarm", ()):
        version = entry["version"]
        if gained.get(version, 0) > serving.get(version, 0):
            kept.append({**entry, "weight": gained[version], "until": max(until, entry["until"])})
        elif version not in gone:
            kept.append(entry)
    return kept


def _digests(targets: Iterable[Wire]) -> set[str]:
    return {str(target["digest"]) for target in targets}


def _timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
