"""Line charts as SVG, without a library: a benchmark's curves, to be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 760, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 130, 30, 24
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#7f7f7f")


def charts(panels: Mapping[str, Mapping[str, Points]], x_label: str) -> str:
    """One panel below the other, each with its lines by name; all start at 0."""
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
