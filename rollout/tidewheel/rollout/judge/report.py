"""What an operator reads: a line per metric, why, and what comes next."""

from math import exp, inf
from typing import Any

from tidewheel.rollout.judge.findings import Finding, Standing, Verdict, VerdictKind, odds_in_words

_ACTIONS = {
    VerdictKind.BLIND: "hold, clock stopped",
    VerdictKind.BREACH: "roll back",
    VerdictKind.SKEWED: "hold, clock stopped",
    VerdictKind.SUSPECT: "hold, clock runs",
    VerdictKind.CLEAR: "advance when the bake is over",
    VerdictKind.THIN: "hold, clock runs",
}
_SHOWN = {
    Standing.BREACH: "breach",
    Standing.SUSPECT: "watch",
    Standing.BOTH_OVER: "both over",
    Standing.CLEAR: "ok",
    Standing.THIN: "thin",
}


def report(verdict: Verdict, *, step: int, steps: int, share: float, baked: float, bake: float) -> tuple[str, ...]:
    """Lines for `tidewheel why`; ``step`` counts from 1, ``share`` is the canary's of all traffic, times in seconds."""
    head = (
        f"step {step}/{steps}  {share:.2%}  bake {_clock(baked)}/{_clock(bake)}   "
        f"verdict {verdict.kind.value} ({_ACTIONS[verdict.kind]})"
    )
    lines = [head, *(f" {_line(finding)}" for finding in verdict.findings)]
    if verdict.narrowed:
        lines.append(f" note: {verdict.narrowed}")
    lines.append(f" why: {verdict.message}{_chance(verdict)}")
    if verdict.seconds_to_decision is not None:
        lines.append(f" next: at this rate decided in about {_clock(verdict.seconds_to_decision)}")
    elif verdict.kind in {VerdictKind.CLEAR, VerdictKind.SUSPECT, VerdictKind.THIN} and baked < bake:
        lines.append(f" next: the step can end in {_clock(bake - baked)} at the earliest")
    return tuple(lines)


def status_metrics(verdict: Verdict) -> list[dict[str, Any]]:
    """For ``status.rollout.metrics``: numbers of each metric, with what would trip it."""
    return [_status_metric(finding) for finding in verdict.findings]


def _status_metric(finding: Finding) -> dict[str, Any]:
    entry = {
        "name": finding.metric,
        "standing": _SHOWN[finding.standing],
        "canary": finding.canary,
        "base": finding.base,
        "estimate": finding.estimate,
        "limit": finding.limit,
        "canarySamples": round(finding.canary_samples),
        "baseSamples": round(finding.base_samples),
        "evidence": None if finding.needed == inf else odds_in_words(finding.evidence),
        "needed": None if finding.needed == inf else odds_in_words(finding.needed),
        "ruledOut": odds_in_words(finding.ruled_out) if finding.ruled_out is not None else None,
        "dryRun": finding.dry_run or None,
        "message": finding.words,
    }
    return {name: _rounded(value) for name, value in entry.items() if value is not None}


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _line(finding: Finding) -> str:
    shown = "dry run" if finding.dry_run else _SHOWN[finding.standing]
    if finding.needed == inf:
        return f"{finding.words}  {shown}"
    harmless = f", harm ruled out {odds_in_words(finding.ruled_out)}" if finding.ruled_out is not None else ""
    evidence = f"evidence {odds_in_words(finding.evidence)} of {odds_in_words(finding.needed)}"
    return f"{finding.words}  {evidence}{harmless}  {shown}"


def _chance(verdict: Verdict) -> str:
    """The same odds the other way round, which people find easier."""
    if verdict.kind is not VerdictKind.SUSPECT:
        return ""
    evidence = max((finding.evidence for finding in verdict.findings if not finding.dry_run), default=0.0)
    if not 1.0 < evidence < 20.0:
        return ""
    return f"; chance alone would do this about 1 time in {exp(evidence):,.0f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
