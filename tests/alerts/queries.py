"""The queries of the alert rules and the dashboards, and what they refer to."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from support.drive.repository import ROOT

RULES = ROOT / "deploy/prometheus/penstock.rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
# The labels that Prometheus adds to all metrics of a pod; see the ServiceMonitor of the chart.
OF_TARGET = frozenset({"service", "pod", "namespace", "job", "instance"})

_SELECTED = re.compile(r"\b(?P<name>(?:penstock|gen_ai_client)_[a-z_]+)(?:\{(?P<labels>[^}]*)\})?")
_LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!=|!~|=)\s*\"")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    """Return all alert rules."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> dict[str, str]:
    """Return all queries, by the alert, or by the dashboard and the panel."""
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text("utf-8"))["panels"]:
            for target in panel["targets"]:
                name = f"{path.stem}: {panel['title']} {target['refId']}"
                found[name] = target["expr"]
    return found


def selected(query: str) -> dict[str, set[str]]:
    """Return the labels by which the query selects series, by the name of the series."""
    found: dict[str, set[str]] = {}
    for match in _SELECTED.finditer(query):
        found.setdefault(match["name"], set()).update(_LABEL.findall(match["labels"] or ""))
    return found


def grouped(query: str) -> set[str]:
    """Return the labels by which the query groups."""
    return {each.strip() for labels in _GROUPED.findall(query) for each in labels.split(",")}
