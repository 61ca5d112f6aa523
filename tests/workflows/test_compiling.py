"""A definition compiles to steps with their needs, and its mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_workflows.definition import Definition, InvalidDefinition, compile


def definition(steps: dict[str, Any], **more: Any) -> Definition:
    return Definition.model_validate(
        {"dsl": "penstock/1", "name": "w", "version": "1", "steps": steps, **more}
    )


def test_a_step_sees_what_it_needs_and_what_its_needs_need() -> None:
    workflow = compile(
        definition(
            {
                "a": {"set": "1"},
                "b": {"needs": ["a"], "set": "a.output + 1"},
                "c": {"needs": ["b"], "set": "a.output + b.output"},
            }
        )
    )
    assert workflow.steps["c"].needs == ("b",)
    assert workflow.steps["c"].ancestors == {"a", "b"}


def test_a_step_does_not_see_a_step_that_need_not_have_run() -> None:
    with pytest.raises(InvalidDefinition, match="undeclared reference to 'a"):
        compile(definition({"a": {"set": "1"}, "b": {"set": "a.output"}}))


def test_a_step_that_handles_a_failure_needs_the_step_that_fails() -> None:
    workflow = compile(
        definition({"a": {"set": "1", "on_failure": "undo"}, "undo": {"set": "a.error"}})
    )
    assert workflow.steps["undo"].needs == workflow.steps["undo"].handles == ("a",)


def test_steps_that_need_each_other_are_refused() -> None:
    steps = {"a": {"needs": ["b"], "set": "1"}, "b": {"needs": ["a"], "set": "1"}}
    with pytest.raises(InvalidDefinition, match="need each other"):
        compile(definition(steps))
