"""From the JSON lines of ``bench.rollout_simulation`` to ``docs/rollout-power.md`` and its chart.

python -m bench.rollout_simulation > results.jsonl
python -m bench.rollout.curves results.jsonl --docs docs
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from math import comb, log10
from pathlib import Path
from typing import Any, Final

Cases = Mapping[str, Mapping[str, float]]
_COLOURS: Final = ("#1b6ca8", "#2a9d8f", "#e9c46a", "#e76f51", "#7b2cbf", "#6c757d")
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 360, 56, 24
_HEAD: Final = """# What rollouts catch, and what they let pass

Simulated whole rollouts with the operator's own judge and step machine, default settings (1-5-25-50-100 %, 10 min
each). Written by `python -m bench.rollout.curves` from the JSON lines of `python -m bench.rollout_simulation`;
latencies are log-normal (TPOT sigma 0.35, TTFT sigma 0.8), base errors 0.1 %. Queueing inside replicas is not
simulated.
"""

_HEALTHY_NOTE: Final = """\
*at most*: the largest rate under which so few rollbacks would still be seen one time in twenty.
Runs are resumable (`--results FILE`), so the numbers of rollouts grow with time; the aim is 1,000 in each row of
`evidence`.
"""
_POWER_NOTE: Final = """\
1.2x is the limit itself (`maxLatencyRatio`, strictly over), as +0.5 % errors is that of `maxErrorRateIncrease`: most
such rollouts are neither promoted nor rolled back within two hours but held as SUSPECT, which stops the ramp. 1.1x is
within the limit and is promoted.
"""


def read(lines: Iterable[str]) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Measurements by case and metric, and the machine they come from."""
    cases: dict[str, dict[str, float]] = {}
    machine: dict[str, Any] = {}
    for line in lines:
        entry = json.loads(line)
        if "machine" in entry:
            machine = entry["machine"]
        else:
            cases.setdefault(entry["case"], {})[entry["metric"]] = entry["value"]
    return cases, machine


def page(cases: Cases) -> str:
    """The whole page."""
    parts = [_HEAD]
    if _named(cases, "faults/"):
        parts += ["## Faults\n", _fault_table(cases)]
    if _named(cases, "aa"):
        parts += ["## Healthy versions\n", _healthy_table(cases), _HEALTHY_NOTE]
    if _named(cases, "power/"):
        parts += [
            "## Power\n",
            "![Share of faults caught by traffic](rollout-power.svg)\n",
            _power_table(cases),
            _POWER_NOTE,
        ]
    return "\n".join(parts)


def chart(cases: Cases) -> str:
    """Share of faulty rollouts caught before 100 %, by requests a second, as SVG."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for case, values in _named(cases, "power/"):
        _, effect, traffic = case.split("/")
        curves.setdefault(effect, []).append((float(traffic.removesuffix("rps")), values["rolled_back"]))
    rates = sorted({rate for points in curves.values() for rate, _ in points})
    low, high = log10(rates[0]), log10(rates[-1])

    def place(rate: float, share: float) -> str:
        x = _LEFT + (log10(rate) - low) / ((high - low) or 1) * (_WIDTH - _LEFT - 160)
        return f"{x:.1f},{_TOP + (100 - share) / 100 * (_HEIGHT - _TOP - 48):.1f}"

    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif">']
    drawn.append(f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>')
    for share in (0, 25, 50, 75, 95, 100):
        drawn.append(_line(place(rates[0], share), place(rates[-1], share), "#dddddd"))
        drawn.append(_text(place(rates[0], share), f"{share} %", shift=(-8, 4), anchor="end"))
    drawn += [_text(place(rate, 0), f"{rate:g}", shift=(0, 18), anchor="middle") for rate in rates]
    drawn.append(_text(place(rates[0], 0), "requests a second", shift=(0, 38), anchor="start"))
    for number, (effect, points) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(place(rate, share) for rate, share in sorted(points))
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = f"{_WIDTH - 140},{_TOP + 16 + 20 * number}"
        drawn.append(_line(label, f"{_WIDTH - 120},{_TOP + 16 + 20 * number}", colour))
        drawn.append(_text(label, effect, shift=(26, 4), anchor="start"))
    return "\n".join([*drawn, "</svg>", ""])


def _named(cases: Cases, prefix: str) -> list[tuple[str, Mapping[str, float]]]:
    return [(case, values) for case, values in cases.items() if case.startswith(prefix)]


def _fault_table(cases: Cases) -> str:
    rows = []
    for case, values in _named(cases, "faults/"):
        _, fault, size = case.split("/")
        rows.append(
            [
                fault,
                size,
                f"{values['rolled_back']:.0f} % of {values['rollouts']:.0f}",
                _pair(values, "detection", 60, "{:.1f}"),
                _pair(values, "share", 1, "{:g}"),
                _pair(values, "exposed", 1, "{:,.0f}"),
            ]
        )
    head = [
        "fault",
        "traffic",
        "rolled back",
        "minutes to detection p50 / p95",
        "at % p50 / p95",
        "requests exposed p50 / p95",
    ]
    return _table(head, rows)


def _healthy_table(cases: Cases) -> str:
    rows = []
    for case, values in _named(cases, "aa"):
        mode, noise, rate = case.split("/")
        rows.append(
            [
                "limits" if mode == "aa-limits" else "evidence",
                noise,
                rate,
                f"{values['rolled_back']:.1f} % of {values['rollouts']:.0f}",
                f"{100 * at_most(values['rolled_back'] / 100 * values['rollouts'], values['rollouts']):.1f} %",
                f"{values['held']:.1f} %",
                _pair(values, "duration_by_bake", 1, "{:.2f}"),
            ]
        )
    head = [
        "mode",
        "noise",
        "traffic",
        "rolled back",
        "at most (95 %)",
        "still held after 4 h",
        "duration by plain bake p50 / p95",
    ]
    return _table(head, rows)


def at_most(hits: float, trials: float) -> float:
    """The largest rate under which so few hits still come about one time in twenty (Clopper and Pearson, one-sided)."""
    seen, number = round(hits), round(trials)
    low, high = seen / number, 1.0
    for _ in range(50):
        rate = (low + high) / 2
        chance = sum(comb(number, count) * rate**count * (1 - rate) ** (number - count) for count in range(seen + 1))
        low, high = (rate, high) if chance > 0.05 else (low, rate)
    return high


def _power_table(cases: Cases) -> str:
    rows = []
    for case, values in _named(cases, "power/"):
        _, effect, rate = case.split("/")
        caught = f"{values['rolled_back']:.0f} % of {values['rollouts']:.0f}"
        rows.append(
            [
                effect,
                rate,
                caught,
                f"{values['held']:.0f} %",
                _pair(values, "detection", 60, "{:.1f}"),
                _pair(values, "exposed", 1, "{:,.0f}"),
            ]
        )
    head = [
        "effect",
        "traffic",
        "caught before 100 %",
        "held, neither way",
        "minutes p50 / p95",
        "requests exposed p50 / p95",
    ]
    return _table(head, rows)


def _pair(values: Mapping[str, float], name: str, divisor: float, form: str) -> str:
    if f"{name}_p50" not in values:
        return "–"
    return " / ".join(form.format(values[f"{name}_{quantile}"] / divisor) for quantile in ("p50", "p95"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["-"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _line(start: str, end: str, colour: str) -> str:
    (x1, y1), (x2, y2) = start.split(","), end.split(",")
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="2"/>'


def _text(at: str, words: str, *, shift: tuple[float, float], anchor: str) -> str:
    x, y = (float(part) + move for part, move in zip(at.split(","), shift, strict=True))
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}">{words}</text>'


def main() -> None:
    """Write page and chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="JSON lines; later files win")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    cases, _ = read(line for path in arguments.results for line in path.read_text().splitlines() if line.strip())
    (arguments.docs / "rollout-power.md").write_text(page(cases))
    if _named(cases, "power/"):
        (arguments.docs / "rollout-power.svg").write_text(chart(cases))


if __name__ == "__main__":
    main()
