"""Prepares a workflow's definition for its runs: finds the steps that follow each step. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import orjson

from penstock.expressions import ValueExpression
from penstock_workflows.definition import Definition, Step, Workflow, compile
from penstock_workflows.engine.records import JsonObject

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class Plan:
    """A compiled workflow, with what its runs need to know about the order of the steps.

    `followers` maps each step to the steps that need it. `positions` maps each step to its position
    in the definition. Steps that could begin at the same time begin in the order of their
    positions. `roots` are the steps that need no other step.
    """

    workflow: Workflow
    positions: Mapping[str, int]
    followers: Mapping[str, tuple[str, ...]]
    roots: tuple[str, ...]
    _names: dict[str, frozenset[str]] = field(default_factory=dict)

    def step(self, name: str) -> Step:
        return self.workflow.steps[name]

    @property
    def steps(self) -> Collection[Step]:
        return self.workflow.steps.values()

    def names_in(self, expression: ValueExpression) -> frozenset[str]:
        """Return all words of an expression, which include the variables that it uses."""
        found = self._names.get(expression.text)
        if found is None:
            found = frozenset(_IDENTIFIER.findall(expression.text))
            self._names[expression.text] = found
        return found


def plan_of(workflow: Workflow) -> Plan:
    followers: dict[str, list[str]] = {name: [] for name in workflow.steps}
    for name, step in workflow.steps.items():
        for needed in step.needs:
            followers[needed].append(name)
    return Plan(
        workflow,
        {name: number for number, name in enumerate(workflow.steps)},
        {name: tuple(after) for name, after in followers.items()},
        tuple(name for name, step in workflow.steps.items() if not step.needs),
    )


def plan_of_json(definition: JsonObject) -> Plan:
    """Return the plan of a definition; it is cached, because many runs have the same one.

    Steps begin in the order of the keys in `definition`, which must be that of the stored document.

    Raises:
        pydantic.ValidationError, InvalidDefinition: the definition is not valid.
    """
    return _plan_of_bytes(orjson.dumps(definition))


@lru_cache(maxsize=256)
def _plan_of_bytes(definition: bytes) -> Plan:
    return plan_of(compile(Definition.model_validate_json(definition)))
