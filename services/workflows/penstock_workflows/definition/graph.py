"""Draws the graph of a workflow, as text and as Mermaid. Pure."""

from __future__ import annotations

import re
from typing import Final

from penstock_workflows.definition import compiled
from penstock_workflows.definition.compiled import Step, Workflow

# The signs that Mermaid has before and after the text of a step, by the step's kind.
_SHAPES: Final = {
    "run": ("[", "]"),
    "workflow": ("[[", "]]"),
    "approve": ("{{", "}}"),
    "call": (">", "]"),
    "listen": ("([", "])"),
    "wait": ("((", "))"),
    "set": ("[/", "/]"),
}
_PLAIN: Final = re.compile(r"[^A-Za-z0-9 .,:;!?'()/_+=%-]")
_MOST: Final = 60  # the greatest number of characters of a label


def about(step: Step) -> str:
    match step.action:
        case compiled.Run(agent=agent):
            text = f"run {agent}"
        case compiled.SubWorkflow(workflow=name, version=version):
            text = f"workflow {name}" + (f" {version}" if version else "")
        case compiled.Approve(policy=policy):
            text = f"approve {policy}"
        case compiled.Call(url=url):
            text = f"call {url}"
        case compiled.Listen(event=event):
            text = f"listen {event}"
        case compiled.Wait(duration_s=duration_s):
            text = f"wait {duration_s:g} s"
        case _:
            text = "set"
    if step.for_each is not None and step.for_each.until is not None:
        text += f", until {' '.join(step.for_each.until.text.split())}"
    elif step.for_each is not None:
        text += f", for each {step.for_each.as_}"
    return text


def levels(workflow: Workflow) -> list[list[Step]]:
    """Return the steps by levels. A step is one level below the lowest step that it needs."""
    level: dict[str, int] = {}
    remaining = dict(workflow.steps)
    while remaining:
        ready = [step for step in remaining.values() if level.keys() >= set(step.needs)]
        for step in ready:
            level[step.name] = 1 + max((level[each] for each in step.needs), default=-1)
            del remaining[step.name]
    found: list[list[Step]] = [[] for _ in range(max(level.values()) + 1)]
    for name, step in workflow.steps.items():
        found[level[name]].append(step)
    return found


def as_text(workflow: Workflow) -> str:
    """Return the graph as text. Steps with the same number can be under way at the same time."""
    lines = [f"{workflow.name} {workflow.version}"]
    width = max(map(len, workflow.steps))
    for number, steps in enumerate(levels(workflow), 1):
        for step in steps:
            notes = [about(step)]
            if step.needs:
                notes.append(f"after {', '.join(step.needs)}")
            if step.when is not None:
                notes.append(f"when {' '.join(step.when.text.split())}")
            if step.handles:
                notes.append(f"if {' or '.join(step.handles)} failed")
            if step.always:
                notes.append("always")
            if not step.handles and step.on_failure != "fail":
                notes.append(f"on failure {step.on_failure}")
            lines.append(f"{number:3}. {step.name:{width}}  {'; '.join(notes)}")
    return "\n".join(lines)


def mermaid(workflow: Workflow) -> str:
    """Return the graph as a Mermaid flowchart.

    A solid line leads to a step from each step that it needs, with the step's condition (`when`) as
    its label. A dotted line leads to a step that handles failures.
    """
    # A step's name may be a reserved word of Mermaid, such as `end`. So each step gets another id.
    ids = {name: f"s{number}" for number, name in enumerate(workflow.steps)}
    lines = ["flowchart TD"]
    for name, step in workflow.steps.items():
        before, after = _SHAPES[step.kind]
        lines.append(f'    {ids[name]}{before}"{_label(name)}<br/>{_label(about(step))}"{after}')
    for name, step in workflow.steps.items():
        for needed in step.needs:
            if needed in step.handles:
                arrow = '-. "failed" .->'
            elif step.when is not None:
                arrow = f'-- "{_label(step.when.text)}" -->'
            else:
                arrow = "-->"
            lines.append(f"    {ids[needed]} {arrow} {ids[name]}")
    return "\n".join(lines)


def _label(text: str) -> str:
    """Return a text without characters that have a meaning in Mermaid or HTML."""
    line = " ".join(text.split())
    short = line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"
    return _PLAIN.sub(lambda match: f"#{ord(match[0])};", short)
