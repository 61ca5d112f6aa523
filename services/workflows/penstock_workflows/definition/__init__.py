"""Defines, checks and compiles the definitions of workflows. Pure."""

from penstock_workflows.definition.compiled import Step, Workflow
from penstock_workflows.definition.compiling import compile
from penstock_workflows.definition.loading import Loaded, load, load_value
from penstock_workflows.definition.model import Definition, StepDefinition
from penstock_workflows.definition.problems import InvalidDefinition, Problem

__all__ = [
    "Definition",
    "InvalidDefinition",
    "Loaded",
    "Problem",
    "Step",
    "StepDefinition",
    "Workflow",
    "compile",
    "load",
    "load_value",
]
