"""The settings tables in the documents equal the tables that the models give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from readmes import generated
from readmes.settings_table import own_fields, table
from support.drive.repository import ROOT, services

MODELS = [
    "penstock.settings.Settings",
    "penstock.settings.AuthSettings",
    *(f"penstock.settings.{name}" for name in ("AgentBase", "AgentOfServer", "AgnoAgent")),
    *(f"penstock.settings.{name}" for name in ("AdkAgent", "AguiAgent", "WorkflowAgent")),
    *(
        f"penstock_{name}.settings.{name.capitalize()}Settings"
        for name in services()
        if (ROOT / f"services/{name}/penstock_{name}/settings.py").exists()
    ),
]
UNITS = {"_s": r"\b[Ss]econds\b", "_bytes": r"\b[Bb]ytes\b|The same\b"}


@pytest.mark.parametrize(
    "document", generated.documents(), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_generated_parts_of_a_document_are_current(document: Path) -> None:
    text = document.read_text("utf-8")
    assert text == generated.renewed(text), "run `make docs`"


def test_every_settings_model_is_shown_in_one_document() -> None:
    assert sorted(generated.models_shown()) == sorted(MODELS)


@pytest.mark.parametrize("path", MODELS)
def test_a_setting_is_described_in_sentences_that_name_its_unit(path: str) -> None:
    for name, field in own_fields(generated.model(path)).items():
        text = field.description or ""
        assert re.fullmatch(r"[A-Z`].*\.", text, re.DOTALL), f"{name}: {text!r} is no sentence"
        for ending, unit in UNITS.items():
            if name.endswith(ending) and not name.endswith("per_s"):
                assert re.search(unit, text), f"{name}: the description does not name the unit"


def test_a_table_shows_variable_default_bounds_and_meaning() -> None:
    text = table(generated.model("penstock.settings.Settings"))
    assert "| `PENSTOCK_REPLICAS` | 1 | 1 to 5 | The number of replicas of each stream. |" in text
    assert "| `PENSTOCK_MAX_UNACKED_BYTES` | 67108864 (64 MiB) | ≥ 1 |" in text
    assert "| `PENSTOCK_LOG_FORMAT` | text | `text`, `json` |" in text
    assert "AUTH" not in text


def test_a_changed_default_makes_a_document_stale() -> None:
    text = (ROOT / "services/edge/README.md").read_text("utf-8")
    stale = text.replace("| `PENSTOCK_KEEP_ALIVE_S` | 15 |", "| `PENSTOCK_KEEP_ALIVE_S` | 16 |")
    assert stale != text
    assert generated.renewed(stale) == text
