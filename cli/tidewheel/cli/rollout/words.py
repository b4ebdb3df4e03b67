"""A rollout in lines of text: the numbers of every metric, what would trip it, and what comes next. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidewheel.cli.rollout.progress import Progress, Standing

_ACTIONS: Final = {
    "BLIND": "hold, clock stopped",
    "BREACH": "roll back",
    "SKEWED": "hold, clock stopped",
    "SUSPECT": "hold, clock runs",
    "CLEAR": "advance when the bake is over",
    "THIN": "hold, clock runs",
}
_NAMES: Final = {
    "errors": "errors",
    "stalls": "stalls",
    "tpot": "TPOT",
    "ttft": "TTFT",
    "tpot-slo": "TPOT over SLO",
    "ttft-slo": "TTFT over SLO",
}
_RATES: Final = frozenset({"errors", "stalls", "tpot-slo", "ttft-slo"})
_DIFFERENCES: Final = frozenset({"errors", "stalls"})
_LATENCIES: Final = frozenset({"tpot", "ttft"})
COLUMNS: Final = ("metric", "canary", "base", "difference", "limit", "evidence", "ruled out", "")


def head(progress: Progress) -> str:
    """One line that says where the rollout is."""
    if not progress.is_running:
        return f"{progress.namespace}/{progress.model}  {progress.headline}"
    parts = [f"step {progress.step}/{progress.steps}", _share(progress)]
    if progress.bake_seconds:
        parts.append(f"bake {clock(progress.baked_seconds)}/{clock(progress.bake_seconds)}")
    if progress.verdict:
        parts.append(f"verdict {progress.verdict} ({_ACTIONS.get(progress.verdict, 'unknown to this program')})")
    else:
        parts.append(progress.phase)
    return "  ".join(parts)


def explanation(progress: Progress) -> list[str]:
    """Every number and every sentence, for `tidewheel why`: in the operator's own lines where it left some."""
    lines = [f"{progress.namespace}/{progress.model}  traffic {progress.split or 'not routed'}"]
    if progress.is_running:
        lines.append(f"rollout {progress.rollout_id}  {head(progress)}")
        lines += [f" {metric_line(metric)}" for metric in progress.metrics]
    else:
        lines.append(f" {progress.headline}")
    lines += list(_closing(progress))
    if progress.is_running and not progress.metrics:
        lines += [f" plan: {line}" for line in progress.plan]
    lines += [f" earlier: {past['id']} {past['outcome']}: {past['message']}" for past in progress.history]
    return lines


def metric_line(metric: Mapping[str, Any]) -> str:
    """The operator's own sentence, with the odds."""
    parts = [str(metric.get("message") or metric.get("name"))]
    if metric.get("evidence"):
        parts.append(f"evidence {metric['evidence']} of {metric.get('needed', '?')}")
    if metric.get("ruledOut"):
        parts.append(f"harm ruled out {metric['ruledOut']}")
    parts.append("dry run" if metric.get("dryRun") else str(metric.get("standing", "")))
    return "  ".join(part for part in parts if part)


def metric_row(metric: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a table whose head is ``COLUMNS``."""
    name = str(metric.get("name", ""))
    evidence = f"{metric['evidence']} of {metric.get('needed', '?')}" if metric.get("evidence") else "-"
    return (
        _NAMES.get(name, name),
        _with_samples(_value(name, metric.get("canary")), metric.get("canarySamples")),
        _with_samples(_value(name, metric.get("base")), metric.get("baseSamples")),
        _estimate(name, metric.get("estimate")),
        _limit(name, metric.get("limit")),
        evidence,
        str(metric.get("ruledOut") or "-"),
        "dry run" if metric.get("dryRun") else str(metric.get("standing", "")),
    )


def closing(progress: Progress) -> list[str]:
    """Why, what next, and what a person should know."""
    return list(_closing(progress))


def clock(seconds: float) -> str:
    """``7m20s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def _closing(progress: Progress) -> Iterator[str]:
    if progress.is_running:
        yield from (line for line in progress.report if line.startswith(" note: "))
        yield f" why: {progress.message}"
        if hint := next((line for line in progress.report if line.startswith(" next: at this rate")), ""):
            yield hint
        left = progress.bake_seconds - progress.baked_seconds
        if progress.standing is Standing.MOVING and progress.verdict in {"CLEAR", "THIN", "SUSPECT"} and left > 0:
            yield f" next: the step can end in {clock(left)} at the earliest"
    yield from (f" note: {note}" for note in progress.notes)


def _share(progress: Progress) -> str:
    seen = progress.observed_share
    return f"{progress.share:.2%}" + (f" (measured {seen:.2%})" if seen is not None else "")


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in _RATES:
        return f"{value:.2%}"
    if name in _LATENCIES:
        return f"{value:.3g} s" if value >= 10 else f"{value * 1000:.3g} ms"
    return f"{value:.4g}"


def _with_samples(text: str, samples: float | None) -> str:
    return f"{text} of {samples:,.0f}" if samples and text != "-" else text


def _estimate(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in _DIFFERENCES:
        return f"{value * 100:+.2f} pt"
    return f"{value:.2f}x" if name in _LATENCIES else _value(name, value)


def _limit(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in _DIFFERENCES:
        return f"+{value * 100:.2f} pt"
    return f"{value:.2f}x" if name in _LATENCIES else _value(name, value)
