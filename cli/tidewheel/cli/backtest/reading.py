"""A demand series from a CSV file or from Prometheus, as the backtest takes it."""

import csv
import itertools
import json
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from tidewheel.autoscaler.backtest.series import Series
from tidewheel.cli.errors import CliError

_TIME_COLUMNS: Final = ("time", "timestamp", "t_s")
_MISSING: Final = "missing"
_PROMETHEUS_POINTS: Final = 11_000


def read_csv(path: Path, column: str) -> Series:
    """``column`` of a file with a header; a first column of times (ISO 8601, or seconds), in order.

    An empty cell, a ``missing`` column with 1, and rows left out are holes. Raises CliError.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CliError(f"cannot read {path}: {error}") from error
    if not rows:
        raise CliError(f"{path} has no rows below its header")
    names = list(rows[0])
    clock = next((name for name in _TIME_COLUMNS if name in names), names[0])
    if column not in names or column == clock:
        others = ", ".join(name for name in names if name != clock)
        raise CliError(f"{path} has no demand column {column!r}; it has: {others}")
    samples = {}
    for number, row in enumerate(rows, start=2):
        moment = _moment(row[clock], f"{path} line {number}")
        value = None if row.get(_MISSING) in ("1", "true") else _value(row[column], f"{path} line {number}: {column}")
        samples[moment] = value
    return _on_grid(path.stem, samples)


def read_prometheus(url: str, query: str, *, days: float, step_seconds: int, now: datetime) -> Series:
    """A range query, in as many parts as Prometheus wants. Raises CliError."""
    end = int(now.timestamp()) // step_seconds * step_seconds
    start = end - int(days * 86_400) // step_seconds * step_seconds
    samples: dict[float, float | None] = {}
    while start < end:
        until = min(end, start + (_PROMETHEUS_POINTS - 1) * step_seconds)
        samples |= _query_range(url, query, start=start, end=until, step_seconds=step_seconds)
        start = until + step_seconds
    if not samples:
        raise CliError(f"{url} knows nothing of {query!r} in the last {days:g} days; try it in its web page first")
    return _on_grid(query[:60], samples, step_seconds=step_seconds)


def _query_range(url: str, query: str, *, start: int, end: int, step_seconds: int) -> dict[float, float | None]:
    arguments = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": step_seconds})
    address = f"{url.rstrip('/')}/api/v1/query_range?{arguments}"
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            body = json.load(answer)
        series = body["data"]["result"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CliError(f"Prometheus at {url} did not answer the query: {error}") from error
    if len(series) > 1:
        raise CliError(f"{query!r} gives {len(series)} series; wrap it in sum(...)")
    return {float(at): float(value) for entry in series for at, value in entry["values"]}


def _on_grid(name: str, samples: Mapping[float, float | None], *, step_seconds: int | None = None) -> Series:
    times = sorted(samples)
    step = step_seconds or _usual_step(times, name)
    first = round(times[0] / step)
    values = np.full(round(times[-1] / step) - first + 1, np.nan)
    for moment in times:
        value = samples[moment]
        if value is not None:
            values[round(moment / step) - first] = value
    return Series(name=name, step_seconds=step, values=values, first_bucket=first)


def _usual_step(times: Iterable[float], name: str) -> int:
    gaps = Counter(round(after - before) for before, after in itertools.pairwise(times))
    if not gaps:
        raise CliError(f"{name}: one row is no series")
    return max(1, gaps.most_common(1)[0][0])


def _moment(text: str | None, where: str) -> float:
    try:
        return float(text or "")
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError as error:
        raise CliError(f"{where}: {text!r} is no time; write ISO 8601 or seconds") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _value(text: str | None, where: str) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        return float(text)
    except ValueError as error:
        raise CliError(f"{where}: {text!r} is no number") from error
