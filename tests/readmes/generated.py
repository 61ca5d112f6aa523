"""Generate the marked parts of documents.

A document requests a part by a pair of comments, and `make docs` writes the part between them:

    <!-- settings: penstock_edge.settings.EdgeSettings -->
    <!-- end of settings -->

`metrics: penstock` is the table of the metrics, `fields: <model>` is the table of a part of a
workflow's definition, `bench: edge` is the table of that piece of `make bench`, from the results
published last, and `compared: table` is the table of `make compare`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from bench import published
from compare import page
from readmes import fields_table, metrics_table
from readmes.settings_table import table
from support.drive.repository import ROOT, files

Part = Callable[[str], str]

_PART = re.compile(
    r"<!-- (?P<kind>\w+): (?P<argument>[\w.]+) -->\n(?P<text>.*?)<!-- end of (?P=kind) -->",
    re.DOTALL,
)


def documents() -> list[Path]:
    """Return every Markdown file of the repository."""
    return [path for path in files() if path.suffix == ".md"]


def model(path: str) -> type[BaseModel]:
    """Return the model of a dotted path. Raises ImportError, AttributeError."""
    module, _, name = path.rpartition(".")
    found: type[BaseModel] = getattr(importlib.import_module(module), name)
    return found


def renewed(text: str) -> str:
    """Return the document with each of its generated parts made anew."""
    return _PART.sub(_renewed, text)


def models_shown() -> list[str]:
    """Return the dotted paths of the models whose settings a document shows."""
    return [
        found["argument"]
        for path in documents()
        for found in _PART.finditer(path.read_text("utf-8"))
        if found["kind"] == "settings"
    ]


def without_generated_parts(text: str) -> str:
    """Return the document without its generated parts."""
    return _PART.sub("", text)


def write() -> None:
    """Write every document whose generated parts have changed."""
    for path in documents():
        text = path.read_text("utf-8")
        if (new := renewed(text)) != text:
            path.write_text(new, "utf-8")
            print(path.relative_to(ROOT))


def _settings(path: str) -> str:
    return table(model(path))


def _fields(path: str) -> str:
    return fields_table.table(model(path))


def _metrics(_: str) -> str:
    return metrics_table.table()


_KINDS: dict[str, Part] = {
    "metrics": _metrics,
    "settings": _settings,
    "fields": _fields,
    "bench": published.table,
    "compared": page.part,
}


def _renewed(found: re.Match[str]) -> str:
    kind, argument = found["kind"], found["argument"]
    text = _KINDS[kind](argument)
    return f"<!-- {kind}: {argument} -->\n{text}<!-- end of {kind} -->"
