"""The picture of a forecast: for a terminal, as a page with SVG, as PNG. Pure; stamps are seconds since the epoch."""

import html
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BARS: Final = " ▁▂▃▄▅▆▇█"
_PAST, _FORECAST, _SAFE = "#4292c6", "#d94801", "#fdae6b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Past demand, forecast and forecast x margin, one value per bucket; NaN is a hole."""

    title: str
    unit: str
    step_seconds: int
    first_at: float
    past: Sequence[float]
    forecast: Sequence[float]
    margin: float
    sentence: str

    @property
    def safe(self) -> list[float]:
        """Forecast with its margin."""
        return [value * self.margin for value in self.forecast]

    @property
    def top(self) -> float:
        """The highest value, for the axis."""
        return max([value for value in [*self.past, *self.safe] if not math.isnan(value)], default=0.0) or 1.0

    def moment(self, bucket: int) -> str:
        """The start of a bucket."""
        at = datetime.fromtimestamp(self.first_at + bucket * self.step_seconds, UTC)
        return at.strftime("%d %b %H:%M")


def terminal_chart(picture: Picture, *, width: int = 100, height: int = 12) -> list[str]:
    """Bars: the past, then a line, then the forecast with its margin above it (lighter)."""
    ahead = max(4, round(width * len(picture.forecast) / max(len(picture.past) + len(picture.forecast), 1)))
    past = _squeezed(picture.past, width - ahead)
    coming, safe = _squeezed(picture.forecast, ahead), _squeezed(picture.safe, ahead)
    rows: list[str] = []
    for row in range(height, 0, -1):
        low, span = (row - 1) / height * picture.top, picture.top / height
        label = f"{picture.top * row / height:>12,.0f} " if row in (height, height // 2 + 1, 1) else " " * 13
        line = "".join(_block(value, low, span) for value in past)
        extra = "".join(
            _block(value, low, span) if value > low + 1e-12 else ("░" if more > low + 1e-12 else " ")
            for value, more in zip(coming, safe, strict=True)
        )
        rows.append(f"{label}{line}│{extra}")
    first, last = picture.moment(0), picture.moment(len(picture.past) + len(picture.forecast))
    now = picture.moment(len(picture.past))
    gap = max(1, len(past) - len(first) - len(now) // 2)
    axis = f"{' ' * 13}{first}{' ' * gap}{now}"
    rows.append(f"{axis}  to {last} (UTC)")
    return [f"{picture.title}, {picture.unit}", *rows, picture.sentence]


def page(picture: Picture) -> str:
    """A page that stands alone."""
    width, height = 1000, 320
    count = len(picture.past) + len(picture.forecast)
    start = len(picture.past)

    def path(values: Sequence[float], offset: int) -> str:
        points, pen = [], "M"
        for index, value in enumerate(values):
            if math.isnan(value):
                pen = "M"
                continue
            x = 60 + (width - 80) * (offset + index) / max(count - 1, 1)
            y = 20 + (height - 60) * (1 - value / picture.top)
            points.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        return " ".join(points)

    ticks = "".join(
        f'<text x="{60 + (width - 80) * index / max(count - 1, 1):.0f}" y="{height - 20}" text-anchor="middle">'
        f"{picture.moment(index)}</text>"
        for index in range(0, count, max(1, count // 6))
    )
    levels = "".join(
        f'<text x="54" y="{20 + (height - 60) * (1 - share):.0f}" text-anchor="end">{picture.top * share:,.0f}</text>'
        for share in (0.0, 0.5, 1.0)
    )
    lines = "".join(
        f'<path d="{path(values, offset)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        for values, offset, colour in (
            (picture.past, 0, _PAST),
            (picture.forecast, start, _FORECAST),
            (picture.safe, start, _SAFE),
        )
    )
    title = html.escape(f"{picture.title}, {picture.unit}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<body style="font-family:sans-serif">'
        f'<h1 style="font-size:1.2em">{title}</h1><p>{html.escape(picture.sentence)}</p>'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="11">'
        f'{levels}{ticks}{lines}</svg><p><span style="color:{_PAST}">demand</span>, '
        f'<span style="color:{_FORECAST}">forecast</span>, '
        f'<span style="color:{_SAFE}">forecast x margin {picture.margin:.2f}</span></p></body></html>\n'
    )


def png(picture: Picture, *, width: int = 1000, height: int = 320) -> bytes:
    """The three lines on white, without words: the title goes into the file's text chunk."""
    canvas: NDArray[np.uint8] = np.full((height, width, 3), 255, dtype=np.uint8)
    count = max(len(picture.past) + len(picture.forecast) - 1, 1)
    start = len(picture.past)
    for values, offset, colour in (
        (picture.safe, start, _SAFE),
        (picture.forecast, start, _FORECAST),
        (picture.past, 0, _PAST),
    ):
        rgb = [int(colour[index : index + 2], 16) for index in (1, 3, 5)]
        known = [(offset + index, value) for index, value in enumerate(values) if not math.isnan(value)]
        if not known:
            continue
        columns = np.arange(width)
        places = [(width - 1) * index / count for index, _ in known]
        heights = np.interp(columns, places, [value for _, value in known])
        inside = (columns >= places[0]) & (columns <= places[-1])
        rows = np.clip(((height - 20) * (1 - heights / picture.top) + 10).astype(int), 0, height - 2)
        before = np.concatenate([rows[:1], rows[:-1]])
        for column in columns[inside]:
            low, high = sorted((int(before[column]), int(rows[column])))
            canvas[low : high + 2, column] = rgb
    raw = b"".join(b"\x00" + canvas[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    text = b"Title\x00" + picture.title.encode("latin-1", "replace")
    chunks = ((b"IHDR", header), (b"tEXt", text), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _squeezed(values: Sequence[float], columns: int) -> list[float]:
    """The highest value that falls into each column; 0 where nothing is known."""
    count = len(values)
    if not count:
        return [0.0] * columns
    found = []
    for column in range(columns):
        begin = column * count // columns
        part = values[begin : max(begin + 1, (column + 1) * count // columns)]
        found.append(max((value for value in part if not math.isnan(value)), default=0.0))
    return found


def _block(value: float, low: float, span: float) -> str:
    return _BARS[max(0, min(8, round(8 * (value - low) / span)))]
