"""The metrics of Penstock, and their table for documents."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from penstock import telemetry

Metric = Counter | Gauge | Histogram


def metrics() -> dict[str, Metric]:
    """Return all metrics of `penstock.telemetry` by the name of the constant."""
    found = {name: each for name, each in vars(telemetry).items() if isinstance(each, Metric)}
    return dict(sorted(found.items(), key=lambda each: name_of(each[1])))


def name_of(metric: Metric) -> str:
    """Return the name that a query uses; a histogram has three, which begin with this one."""
    name: str = metric._name
    return f"{name}_total" if isinstance(metric, Counter) else name


def series() -> dict[str, frozenset[str]]:
    """Return the labels of each name that a query may use."""
    found: dict[str, frozenset[str]] = {}
    for metric in metrics().values():
        labels = frozenset(metric._labelnames)
        if isinstance(metric, Histogram):
            found |= {f"{name_of(metric)}_{end}": labels for end in ("sum", "count")}
            found[f"{name_of(metric)}_bucket"] = labels | {"le"}
        else:
            found[name_of(metric)] = labels
    return found


def table() -> str:
    """Return the table: name, kind, labels, meaning."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics().values():
        labels = ", ".join(f"`{each}`" for each in metric._labelnames)
        cells = (f"`{name_of(metric)}`", metric._type, labels, metric._documentation)
        lines.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    return "\n".join(lines) + "\n"
