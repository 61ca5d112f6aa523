"""The event types and their fields do not change unnoticed, and the catalogue describes them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from pydantic import Field

from penstock.events import CATALOGUE, TERMINAL, is_epilogue
from penstock.events.base import Data, Model
from penstock.events.catalogue import CATEGORIES, events_in
from support.recorded.goldens import check

VOCABULARY = Path(__file__).parents[2] / "golden/events/vocabulary.txt"


def fields(model: type[Model]) -> list[str]:
    """Return the fields as they are in a message; `?` marks a field that may be absent."""
    return [
        (field.alias or name) + ("" if field.is_required() else "?")
        for name, field in model.model_fields.items()
    ]


def test_the_vocabulary_is_this_one() -> None:
    """Pin every type and field that Penstock publishes, so that a change is a decision.

    `UPDATE_GOLDENS=1` writes the list anew.

    Before a change, think of the readers. Subscribers have these names in their code and in their
    NATS subscriptions, and events of the old form stay in the streams until they age out. So a
    field or type may be added (optional, with a description, and every encoder must have a place
    for it or say that it has none). No field or type may be renamed, removed, made required or
    given another meaning. An addition goes into the changelog, the generated schemas and each
    dialect's documentation in the same change.
    """
    check(VOCABULARY, [f"{name}: {' '.join(fields(row.model))}" for name, row in CATALOGUE.items()])


def test_a_type_lives_in_the_module_of_its_category() -> None:
    for category, module in CATEGORIES.items():
        assert events_in(module)
        for row in events_in(module):
            assert row.name.split(".")[0] == category


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_type_and_every_field_is_described(name: str) -> None:
    row = CATALOGUE[name]
    assert row.name == row.model.TYPE == name
    assert row.title
    assert row.description.endswith((".", "…"))
    for field_name, field in row.model.model_fields.items():
        assert field.description, f"{name}: {field_name}"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_type_has_a_json_schema_under_its_wire_names(name: str) -> None:
    row = CATALOGUE[name]
    schema = row.model.model_json_schema()
    assert schema["title"] == row.title
    assert list(schema["properties"]) == [word.rstrip("?") for word in fields(row.model)]


def test_three_types_end_a_run() -> None:
    assert {name for name, row in CATALOGUE.items() if row.terminal} == TERMINAL
    assert {"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"} == TERMINAL


def test_only_automations_a_withdrawn_approval_and_an_erasure_may_follow_the_end() -> None:
    assert {name for name in CATALOGUE if is_epilogue(name)} == {
        "automation.triggered",
        "automation.completed",
        "automation.failed",
        "approval.withdrawn",
        "system.erased",
    }


def test_a_model_refuses_to_guess() -> None:
    class Sample(Model):
        count: int = Field(description="A number.")

    with pytest.raises(ValueError, match="valid integer"):
        Sample.model_validate({"count": "1"})


def test_a_model_without_a_note_is_refused_with_what_to_do() -> None:
    module = ModuleType("billing")
    namespace = {"__module__": "billing", "TYPE": "billing.charged", "__doc__": "It was charged."}
    module.Charged = type("Charged", (Data,), namespace)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"billing\.charged has no NOTE: say when"):
        events_in(module)
