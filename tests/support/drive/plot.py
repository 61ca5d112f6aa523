"""Draw the figures of a benchmark as line and bar charts in SVG, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 760, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 130, 30, 24
_BAR, _BAR_TITLE, _BAR_GAP = 17, 20, 10
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#7f7f7f")


def charts(panels: Mapping[str, Mapping[str, Points]], x_label: str) -> str:
    """Draw one panel below the other, each with its lines by name. All axes start at 0."""
    drawn = [
        f'<g transform="translate(0 {number * _HEIGHT})">{_panel(title, lines)}</g>'
        for number, (title, lines) in enumerate(panels.items())
    ]
    height = len(panels) * _HEIGHT + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>\n'
        + "\n".join(drawn)
        + f'\n<text x="{_LEFT}" y="{height - 6}">{escape(x_label)}</text>\n</svg>\n'
    )


def _panel(title: str, lines: Mapping[str, Points]) -> str:
    x_max = max((x for points in lines.values() for x, _ in points), default=1) or 1
    y_max = (max((y for points in lines.values() for _, y in points), default=1) or 1) * 1.05
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + x / x_max * (right - _LEFT),
            bottom - y / y_max * (bottom - _TOP),
        )

    drawn = [f'<text x="{_LEFT}" y="{_TOP - 12}" font-weight="bold">{escape(title)}</text>']
    for part in range(5):
        x_value, y_value = x_max * part / 4, y_max * part / 4
        x, y = at(x_value, y_value)
        drawn.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{y_value:,.0f}</text>'
        )
        drawn.append(
            f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{x_value:,.0f}</text>'
        )
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        y = _TOP + 12 + 15 * number
        drawn.append(f'<text x="{right + 8}" y="{y}" fill="{colour}">{escape(name)}</text>')
    return "".join(drawn)


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its spread."""

    name: str
    value: float
    low: float
    high: float


def bars(panels: Mapping[str, Sequence[Bar]], colours: Mapping[str, str]) -> str:
    """Draw one panel below the other, each with its own scale from 0; a thin line shows the spread.

    `colours`: CSS colours by the bars' names.
    """
    drawn, y = [], 8
    for title, rows in panels.items():
        drawn.append(f'<text x="8" y="{y + 12}" font-weight="bold">{escape(title)}</text>')
        y += _BAR_TITLE
        most = max((bar.high for bar in rows), default=1) or 1
        for bar in rows:
            drawn.append(_bar(bar, y, (_WIDTH - _LEFT - _RIGHT - 40) / most, colours))
            y += _BAR
        y += _BAR_GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{_WIDTH}" height="{y}" fill="white"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _bar(bar: Bar, y: int, scale: float, colours: Mapping[str, str]) -> str:
    left, middle = _LEFT + 20, y + _BAR / 2 - 1
    low, high = left + bar.low * scale, left + bar.high * scale
    shown = f"{bar.value:,.0f}" if bar.value >= 100 else f"{bar.value:.1f}"
    return (
        f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{escape(bar.name)}</text>'
        f'<rect x="{left}" y="{y + 1}" width="{bar.value * scale:.1f}" height="{_BAR - 4}" '
        f'fill="{colours.get(bar.name, _COLOURS[-1])}"/>'
        f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#222"/>'
        f'<text x="{max(high, left) + 6:.1f}" y="{y + 11}">{shown}</text>'
    )
