"""Checks and draws definitions of workflows on this machine, without a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from penstock.settings import load_config
from penstock_workflows.definition import InvalidDefinition, Loaded, load, load_value
from penstock_workflows.definition.checks import unknown_references
from penstock_workflows.definition.graph import as_text, mermaid
from penstock_workflows.registry import definitions_in


@dataclass(frozen=True, slots=True)
class Checked:
    """A file with a definition. Either `value` has the definition, or `problems` has the mistakes
    in the form that the service uses."""

    path: Path
    value: dict[str, Any]
    problems: Sequence[Mapping[str, Any]] = ()
    content: bytes = b""  # the document as it was read


def agents_of(config: Path) -> list[str]:
    return [agent.id for agent in load_config(config).agents]


def check(files: Sequence[Path], agents: Collection[str] | None) -> list[Checked]:
    """Return the files with their definitions or mistakes; `agents` None: no names of agents are
    checked."""
    return [_checked(each, agents) for path in files for each in definitions_in(path)]


def _checked(path: Path, agents: Collection[str] | None) -> Checked:
    try:
        content = path.read_bytes()
        loaded: Loaded = load(content)
        loaded.refuse(list(unknown_references(loaded.workflow, agents, None)))
    except OSError as error:
        return Checked(
            path, {}, [{"field": "file", "message": f"cannot be read: {error.strerror}"}]
        )
    except InvalidDefinition as error:
        return Checked(path, {}, [each.shown() for each in error.problems])
    return Checked(path, loaded.value, content=content)


def in_order(files: Sequence[Checked]) -> list[Checked]:
    """Return the files in the order in which they must be stored. If a workflow runs another
    workflow, the other workflow comes first."""
    by_name = {each.value.get("name", str(each.path)): each for each in files}
    graph: dict[str, set[str]] = {name: _runs(each.value) for name, each in by_name.items()}
    try:
        order = [name for name in TopologicalSorter(graph).static_order() if name in by_name]
    except CycleError:
        # The workflows run each other in a cycle, so no order is right. The server then refuses a
        # definition and names the missing workflow.
        return list(files)
    return [by_name[name] for name in order] + [
        each for each in files if each not in by_name.values()
    ]


def _runs(definition: Mapping[str, Any]) -> set[str]:
    steps = definition.get("steps", {}).values()
    return {step["workflow"]["workflow"] for step in steps if "workflow" in step}


def drawn(definition: dict[str, Any], *, as_mermaid: bool) -> str:
    workflow = load_value(definition).workflow
    return mermaid(workflow) if as_mermaid else as_text(workflow)
