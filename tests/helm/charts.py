"""The chart, rendered in every way that the tests check, with and without Helm."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from support.drive.repository import ROOT

CHART = ROOT / "deploy/helm/penstock"
HERE = Path(__file__).parent
RENDERED = HERE / "rendered"
KUBERNETES = "1.31.0"
OF_USER = ["-f", str(HERE / "values/mine.yaml")]
# What each rendering is made with, beside the values that every user must give.
SETS: dict[str, list[str]] = {
    "default": OF_USER,
    "small": [*OF_USER, "-f", str(CHART / "values/small.yaml")],
    "usual": [*OF_USER, "-f", str(CHART / "values/usual.yaml")],
    "large": [*OF_USER, "-f", str(CHART / "values/large.yaml")],
    "everything": [*OF_USER, "-f", str(HERE / "values/everything.yaml")],
    "nack": [*OF_USER, "--set", "streams.by=nack"],
    "open": ["-f", str(HERE / "values/open.yaml")],
    "all-in-one": ["-f", str(HERE / "values/all-in-one.yaml")],
}
Object = dict[str, Any]  # a Kubernetes object


class Refused(Exception):
    """Helm refused the values."""


def helm() -> str | None:
    """Return Helm's path: the one that `make kubernetes` has built, or one of this machine."""
    built = ROOT / ".penstock/kubernetes/bin/helm"
    return str(built) if built.exists() else shutil.which("helm")


def template(arguments: list[str]) -> str:
    """Return the rendered chart, without the lines that say which template made an object.

    Raises:
        Refused: Helm refuses the values; the error has Helm's text.
    """
    program = helm()
    assert program is not None
    command = [program, "template", "demo", str(CHART), "--namespace", "agents"]
    done = subprocess.run(
        [*command, "--kube-version", KUBERNETES, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Refused(done.stderr)
    text = re.sub(r"^# Source: .*\n", "", done.stdout, flags=re.MULTILINE)
    # Helm makes other keys in each rendering. This one is for all.
    made = r"^(  (?:csrf-secret|rule-keys): )\S{64}$"
    return re.sub(made, r"\g<1>bWFkZSBieSBIZWxt", text, flags=re.MULTILINE)


def objects(text: str) -> list[Object]:
    """Return the objects of a rendering."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def compared(found: list[Object]) -> list[Object]:
    """Return what a committed rendering must have: all but dashboards, alerts and streams' specs.

    These change with the files of the chart, which have tests of their own.
    """
    return [
        {key: each[key] for key in each if key != "spec"} if each["kind"] == "Stream" else each
        for each in found
        if not _is_watching(each)
    ]


def _is_watching(each: Object) -> bool:
    """Return whether this is a dashboard or has alerts."""
    is_dashboard = "grafana_dashboard" in each["metadata"].get("labels", {})
    return is_dashboard or each["kind"] == "PrometheusRule"


def _without_watching(text: str) -> str:
    parts = re.split(r"^---\n", text, flags=re.MULTILINE)
    kept = [each for each in parts if not any(map(_is_watching, objects(each)))]
    return "---\n".join(kept)


@cache
def committed(name: str) -> list[Object]:
    """Return the objects of a committed rendering, which callers must not change."""
    return objects((RENDERED / f"{name}.yaml").read_text())


def digest() -> str:
    """Return the digest of all that decides a rendering, but dashboards and alerts."""
    made = hashlib.sha256()
    own = [path for path in CHART.rglob("*") if path.is_file() and "files" not in path.parts]
    for path in sorted([*own, *(HERE / "values").iterdir()]):
        made.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return made.hexdigest()


def render() -> None:
    """Write all renderings anew."""
    RENDERED.mkdir(exist_ok=True)
    for name, arguments in SETS.items():
        (RENDERED / f"{name}.yaml").write_text(_without_watching(template(arguments)))
    (RENDERED / "digest").write_text(f"{digest()}\n")


if __name__ == "__main__":
    render()
