"""The page with the table and the chart of the backtests."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidewheel.autoscaler.backtest.replay import HPA, OURS, Score

_INTRODUCTION = """# What the autoscaler would have done with recorded demand

Written by `python -m bench.scaling_backtest --write docs/backtest.md`; the same numbers come out on any machine.
One series alone: `tidewheel backtest --series FILE.csv --column NAME --lead-minutes N`.

**How it is played.** Each series is scaled so that the 99.5th percentile of its demand is {peak:g} replicas. A
policy is told the mean of a bucket when the bucket has ended, and knows nothing later. What it orders then serves
one lead later; what it takes back drops replicas that still start first. No spare replicas, no reactive layer
inside a bucket, no ladder. The score begins after a week (after three days of a week's series, a quarter of a
day's). *Missed* is the share of offered load above ready capacity, *short* the share of buckets with any. GPU-hours
are replica-hours ordered, those that start included. *vs HPA* compares with a demand HPA (`ceil(demand /
utilisation)`, ten-minute down window) whose utilisation is chosen **in hindsight**, the highest that misses no more
load than ours: GPU-hours at equal shortage, against a competitor that knew the answer. *vs perfect* compares with a
clairvoyant without lead. Nothing of ours was fitted to these series: margin, weights and exponents follow each
series' own past errors.

"""


@dataclass(frozen=True, slots=True)
class Case:
    """One series at one lead."""

    series: str
    lead_minutes: int
    step_minutes: int
    scores: Sequence[Score]

    def of(self, policy: str) -> Score:
        """The score of a policy."""
        return next(score for score in self.scores if score.policy == policy)

    @property
    def ratio(self) -> float:
        """GPU-hours of ours over those of the tuned HPA."""
        return self.of(OURS).gpu_hours / self.of(HPA).gpu_hours


def write_page(path: Path, cases: Sequence[Case], *, peak: float) -> None:
    """The page, and beside it the chart."""
    chart = path.with_suffix(".svg")
    text = _INTRODUCTION.format(peak=peak) + _summary(cases) + f"\n![GPU-hours against the tuned HPA]({chart.name})\n\n"
    path.write_text(text + _table(cases) + _others(cases), encoding="utf-8")
    chart.write_text(_chart(cases), encoding="utf-8")


def _summary(cases: Sequence[Case]) -> str:
    lines = [
        "| lead | series | ours vs HPA, median | best | worst | vs perfect, median | missed, median | short, median |",
        "|-|-|-|-|-|-|-|-|",
    ]
    for lead in sorted({case.lead_minutes for case in cases}):
        chosen = [case for case in cases if case.lead_minutes == lead]
        ratios = [case.ratio for case in chosen]
        ours = [case.of(OURS) for case in chosen]
        lines.append(
            f"| {lead} min | {len(chosen)} | **{statistics.median(ratios):.2f}** "
            f"| {min(ratios):.2f} | {max(ratios):.2f} "
            f"| {statistics.median(score.gpu_hours_vs_perfect for score in ours):.2f} "
            f"| {statistics.median(score.missed_percent for score in ours):.2f} % "
            f"| {statistics.median(score.short_percent for score in ours):.2f} % |"
        )
    return "\n".join(lines) + "\n"


def _table(cases: Sequence[Case]) -> str:
    lines = [
        "## Ours, series by series\n",
        "| series (step) | lead | missed | short | vs HPA | HPA's setting | vs perfect |",
        "|-|-|-|-|-|-|-|",
    ]
    for case in cases:
        ours, hpa = case.of(OURS), case.of(HPA)
        lines.append(
            f"| {case.series} ({case.step_minutes} min) | {case.lead_minutes} | {ours.missed_percent:.2f} % "
            f"| {ours.short_percent:.2f} % | {case.ratio:.2f} | {hpa.setting} | {ours.gpu_hours_vs_perfect:.2f} |"
        )
    return "\n".join(lines) + "\n\n"


def _others(cases: Sequence[Case]) -> str:
    policies = [score.policy for score in cases[0].scores]
    lines = [
        "## All policies\n",
        "Missed load / GPU-hours against perfect.\n",
        "| series | lead | " + " | ".join(policies) + " |",
        "|-|-|" + "-|" * len(policies),
    ]
    for case in cases:
        cells = [f"{score.missed_percent:.2f} % / {score.gpu_hours_vs_perfect:.2f}" for score in case.scores]
        lines.append(f"| {case.series} | {case.lead_minutes} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _chart(cases: Sequence[Case]) -> str:
    """Bars of GPU-hours against the tuned HPA; left of the line is cheaper at equal shortage."""
    row, left, width = 16, 300, 420
    height = 40 + row * len(cases)
    scale = width / 1.4
    colours = {10: "#9ecae1", 30: "#4292c6", 60: "#08519c"}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{left + width + 60}" height="{height}" fill="white"/>',
        '<text x="8" y="16">GPU-hours against the demand HPA tuned in hindsight to miss no more (1.0 = equal)</text>',
    ]
    for index, case in enumerate(cases):
        y = 30 + row * index
        length = min(case.ratio, 1.4) * scale
        parts.append(
            f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{case.series}, {case.lead_minutes} min</text>'
        )
        colour = colours.get(case.lead_minutes, "#666")
        parts.append(f'<rect x="{left}" y="{y + 1}" width="{length:.1f}" height="{row - 3}" fill="{colour}"/>')
        parts.append(f'<text x="{left + length + 4:.1f}" y="{y + 11}">{case.ratio:.2f}</text>')
    line = left + scale
    parts.append(f'<line x1="{line:.1f}" y1="26" x2="{line:.1f}" y2="{height - 6}" stroke="#c00"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
