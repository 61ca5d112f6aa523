"""Definitions of workflows: the model, compiling and checking. Pure."""

from penstock_workflows.definition.compiled import Step, Workflow
from penstock_workflows.definition.compiling import InvalidDefinition, Problem, compile
from penstock_workflows.definition.model import Definition, StepDefinition

__all__ = [
    "Definition",
    "InvalidDefinition",
    "Problem",
    "Step",
    "StepDefinition",
    "Workflow",
    "compile",
]
