"""A released schema may only grow by optional fields."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from penstock.contract import VERSION
from penstock.contract.compatibility import breaking, missing
from support.drive.contract import CONTRACT, schemas

NOW = schemas()
RELEASES = sorted(path.name for path in (CONTRACT / "released").iterdir())
Schema = dict[str, Any]


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_that_was_released_is_broken(release: str) -> None:
    released = schemas(f"released/{release}")
    assert missing(released, NOW) == []
    found = {name: breaking(schema, NOW[name]) for name, schema in released.items() if name in NOW}
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_there_is_a_release_to_be_held_to() -> None:
    assert VERSION in RELEASES
    assert schemas(f"released/{VERSION}")


def data(schema: Schema) -> Schema:
    part: Schema = schema["properties"]["data"]
    return part


def remove_field(schema: Schema) -> None:
    del data(schema)["properties"]["duration_s"]


def remove_demanded_field(schema: Schema) -> None:
    del data(schema)["properties"]["tool"]
    data(schema)["required"].remove("tool")


def change_type(schema: Schema) -> None:
    data(schema)["properties"]["tool"]["type"] = "integer"


def allow_null(schema: Schema) -> None:
    data(schema)["properties"]["tool"] = {"anyOf": [{"type": "string"}, {"type": "null"}]}


def forbid_null(schema: Schema) -> None:
    data(schema)["properties"]["error"] = {"type": "string"}


def demand(schema: Schema) -> None:
    data(schema)["required"].append("duration_s")


def demand_a_new_field(schema: Schema) -> None:
    data(schema)["properties"]["weight"] = {"type": "number"}
    data(schema)["required"].append("cost")


def demand_no_more(schema: Schema) -> None:
    data(schema)["required"].remove("tool")


def close_the_words(schema: Schema) -> None:
    data(schema)["properties"]["outcome"]["enum"] = ["ok", "error"]


def rename_the_type(schema: Schema) -> None:
    schema["properties"]["event"]["properties"]["action"]["const"] = "tool_answer"


def forbid_further_fields(schema: Schema) -> None:
    data(schema)["additionalProperties"] = False


def change_a_pattern(schema: Schema) -> None:
    schema["properties"]["run_id"]["pattern"] = "^[a-z]+$"


def change_what_stands_elsewhere(schema: Schema) -> None:
    schema["$defs"]["Source"]["properties"]["team_name"] = {"type": "string"}


def change_what_a_list_holds(schema: Schema) -> None:
    data(schema)["properties"]["content"]["anyOf"][0]["items"] = {"type": "string"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (remove_field, "/properties/data/properties/duration_s: removed"),
        (remove_demanded_field, "/properties/data/properties/tool: removed"),
        (change_type, "/properties/data/properties/tool/type: was string, is integer"),
        (allow_null, "/properties/data/properties/tool/type: was string, is None"),
        (forbid_null, "/properties/data/properties/error/type: was None, is string"),
        (demand, "/properties/data/required: duration_s is demanded now"),
        (demand_a_new_field, "/properties/data/required: cost is demanded now"),
        (demand_no_more, "/properties/data/required: tool may be absent now"),
        (close_the_words, "/properties/data/properties/outcome/enum: was None, is ['ok', 'error']"),
        (
            rename_the_type,
            "/properties/event/properties/action/const: was tool_result, is tool_answer",
        ),
        (
            forbid_further_fields,
            "/properties/data/additionalProperties: was True, is False",
        ),
        (change_a_pattern, "/properties/run_id/pattern: was ^[A-Za-z0-9_-]+$, is ^[a-z]+$"),
        (
            change_what_stands_elsewhere,
            "/properties/source/anyOf/0/properties/team_name/type: was None, is string",
        ),
        (
            change_what_a_list_holds,
            "/properties/data/properties/content/anyOf/0/items/type: was None, is string",
        ),
    ],
)
def test_a_change_that_breaks_is_told_with_its_place(
    change: Callable[[Schema], None], told: str
) -> None:
    changed = copy.deepcopy(NOW["llm.tool_result"])
    change(changed)
    assert told in breaking(NOW["llm.tool_result"], changed)


def add_an_optional_field(schema: Schema) -> None:
    data(schema)["properties"]["weight"] = {"type": "number"}


def add_an_optional_field_elsewhere(schema: Schema) -> None:
    schema["$defs"]["Source"]["properties"]["region"] = {"type": "string"}


def say_it_better(schema: Schema) -> None:
    schema["description"] = data(schema)["properties"]["tool"]["description"] = "Better."
    schema["examples"] = []


@pytest.mark.parametrize(
    "change", [add_an_optional_field, add_an_optional_field_elsewhere, say_it_better]
)
def test_a_change_that_only_adds_is_fine(change: Callable[[Schema], None]) -> None:
    changed = copy.deepcopy(NOW["llm.tool_result"])
    change(changed)
    assert changed != NOW["llm.tool_result"]
    assert breaking(NOW["llm.tool_result"], changed) == []


def test_a_list_of_words_may_grow_and_not_shrink() -> None:
    few = {"properties": {"outcome": {"type": "string", "enum": ["ok", "error"]}}}
    more = {"properties": {"outcome": {"type": "string", "enum": ["ok", "error", "partial"]}}}
    assert breaking(few, more) == []
    assert breaking(more, few) == ["/properties/outcome/enum: partial removed"]


def test_a_type_may_come_and_not_go() -> None:
    grown = {**NOW, "billing.charged": NOW["llm.stream"]}
    assert missing(NOW, grown) == []
    assert missing(grown, NOW) == ["billing.charged"]


def test_a_field_that_is_named_like_a_word_of_json_schema_is_still_a_field() -> None:
    released = {"properties": {"description": {"type": "string"}, "examples": {"type": "array"}}}
    assert breaking(released, {"properties": {}}) == [
        "/properties/description: removed",
        "/properties/examples: removed",
    ]
