"""Draw a dashboard's panels from what Prometheus answered, as one SVG without a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from alerts.prometheus import Line

_COLUMNS, _WIDTH, _HEIGHT = 3, 420, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 24, 62
_BARS_LEFT, _BARS_RIGHT, _ROW = 130, 700, 16  # of the picture of alerts
_MOST_NAMES: Final = 9
_COLOURS = (
    *("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#7f7f7f", "#8c564b"),
    "#e377c2",
)
_UNITS: Final = {"bytes": "B", "s": "s", "percentunit": "%", "ops": "/s", "reqps": "/s"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel, and its lines by their names in the legend."""

    title: str
    unit: str
    lines: Sequence[tuple[str, Line]]


@dataclass(frozen=True, slots=True)
class Band:
    """A fault, from one time to another, in seconds since 1970."""

    name: str
    begin: float
    end: float


def draw(panels: Sequence[Panel], bands: Sequence[Band], begin: float, end: float) -> str:
    """Return the picture; the time of each fault is grey."""
    rows = math.ceil(len(panels) / _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT + 8
    drawn = []
    for number, panel in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        place = f"translate({column * _WIDTH} {row * _HEIGHT})"
        drawn.append(f'<g transform="{place}">{_panel(panel, bands, begin, end)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="10">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def draw_alerts(
    fired: Mapping[str, tuple[float, float]], causes: Mapping[str, str], end: float
) -> str:
    """Return a picture of the first and the last firing of each alert, beside its fault.

    Times are in seconds since the begin of the run.
    """
    ordered = sorted(fired.items(), key=lambda each: each[1])
    bottom = 10 + _ROW * len(ordered)

    def x(at_s: float) -> float:
        return _BARS_LEFT + at_s / end * (_BARS_RIGHT - _BARS_LEFT)

    drawn = [
        f'<path d="M{x(minute * 60):.0f} 6V{bottom}" stroke="#ddd"/>'
        f'<text x="{x(minute * 60):.0f}" y="{bottom + 16}" text-anchor="middle">{minute} min</text>'
        for minute in range(int(end / 60) + 1)
    ]
    for number, (alert, (first, last)) in enumerate(ordered):
        y = 10 + _ROW * number
        drawn.append(
            f'<text x="{_BARS_LEFT - 8}" y="{y + 9}" text-anchor="end">'
            f"{escape(alert.removeprefix('Penstock'))}</text>"
            f'<rect x="{x(first):.0f}" y="{y}" width="{max(2.0, x(last) - x(first)):.0f}" '
            f'height="11" fill="#d62728" opacity="0.75"/>'
            f'<text x="{_BARS_RIGHT + 12}" y="{y + 9}" fill="#555">'
            f"{escape(causes.get(alert, ''))}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {bottom + 26}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="1000" height="{bottom + 26}" fill="white"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _value(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {sign}{_UNITS.get(unit, '')}"
    text = f"{value:.0f}" if value >= 10 else f"{value:.2g}"
    return f"{text} {_UNITS.get(unit, '')}".strip()


def _panel(panel: Panel, bands: Sequence[Band], begin: float, end: float) -> str:
    most = max((value for _, line in panel.lines for _, value in line.points), default=0) or 1
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + (at - begin) / (end - begin) * (right - _LEFT)

    def y(value: float) -> float:
        return bottom - max(0.0, value) / (most * 1.05) * (bottom - _TOP)

    drawn = [f'<text x="8" y="14" font-weight="bold">{escape(panel.title)}</text>']
    for band in bands:
        left = x(band.begin)
        drawn.append(
            f'<rect x="{left:.0f}" y="{_TOP}" width="{x(band.end) - left:.0f}" '
            f'height="{bottom - _TOP}" fill="#000" opacity="0.05"/>'
        )
    for part in range(3):
        at = most * part / 2
        drawn.append(f'<path d="M{_LEFT} {y(at):.0f}H{right}" stroke="#ddd"/>')
        label = _value(at, panel.unit)
        drawn.append(f'<text x="{_LEFT - 4}" y="{y(at) + 3:.0f}" text-anchor="end">{label}</text>')
    for minute in range(0, int((end - begin) / 60) + 1, 2):
        where = x(begin + minute * 60)
        drawn.append(
            f'<text x="{where:.0f}" y="{bottom + 12}" text-anchor="middle">{minute} min</text>'
        )
    # The highest lines have their names; a panel of Grafana has a legend that scrolls.
    ordered = sorted(
        panel.lines, key=lambda each: max(value for _, value in each[1].points), reverse=True
    )
    for number, (name, line) in enumerate(ordered):
        colour = _COLOURS[number] if number < _MOST_NAMES else "#bbb"
        for piece in _pieces(line.points):
            points = " ".join(f"{x(at):.0f},{y(value):.0f}" for at, value in piece)
            drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        if number < _MOST_NAMES:
            row, column = divmod(number, 3)
            drawn.append(
                f'<text x="{_LEFT + column * 122}" y="{bottom + 26 + 12 * row}" fill="{colour}">'
                f"{escape(name[:24])}</text>"
            )
    if not panel.lines:
        drawn.append(f'<text x="{_WIDTH // 2}" y="{_TOP + 50}" fill="#888">no data</text>')
    return "".join(drawn)


def _pieces(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Cut a line where points are missing."""
    if len(points) < 2:
        return [[(at - 1, value), (at + 1, value)] for at, value in points]
    step = min(later[0] - earlier[0] for earlier, later in pairwise(points))
    pieces = [[points[0]]]
    for point in points[1:]:
        if point[0] - pieces[-1][-1][0] > step * 1.5:
            pieces.append([])
        pieces[-1].append(point)
    return [_thinned(piece) for piece in pieces]


def _thinned(piece: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out the points within a level part, which do not change the picture."""
    kept = [
        point
        for before, point, after in zip(piece, piece[1:], piece[2:], strict=False)
        if not before[1] == point[1] == after[1]
    ]
    return [piece[0], *kept, piece[-1]]
