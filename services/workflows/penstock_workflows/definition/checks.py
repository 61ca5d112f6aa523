"""Makes the checks of a definition that neither the pydantic model nor CEL makes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.events import CATALOGUE
from penstock.expressions import EXPRESSION, ReadPath
from penstock.json_schema import TooMuchWork, misfits, schema_mistakes, with_numbers
from penstock.settings import Config
from penstock.validation import check_headers_differ, did_you_mean
from penstock_workflows.definition.compiled import Run, SubWorkflow, Workflow
from penstock_workflows.definition.model import (
    KINDS,
    OF_ROUND,
    Approve,
    Call,
    Definition,
    StepDefinition,
    StepKind,
)
from penstock_workflows.definition.problems import Path, Problem

# The fields of a step, and of a run's result, that expressions may read.
OF_STEP: Final = ("output", "error", "status")
OF_RESULT: Final = ("text", "data", "status", "run_id", "usage")
OF_CALL: Final = (*OF_RESULT, "headers")
OF_APPROVAL: Final = (*OF_RESULT, "decision", "value", "note", "by")

_RUNS: Final[Collection[StepKind]] = ("run", "workflow")
_AGENTS: Final[Collection[StepKind]] = ["run"]
# The fields that only some kinds of steps may have.
_ONLY: Final[Mapping[str, Collection[StepKind]]] = {
    "retry": ("run", "workflow", "approve", "call", "listen"),
    "timeout": ("run", "workflow", "approve", "call", "listen"),
    "dispatch": _RUNS,
    "role": _AGENTS,
    # People, events and lists could keep a run that was cancelled.
    "always": ("run", "workflow", "call", "wait", "set"),
}


def check_graph(definition: Definition) -> Iterator[Problem]:
    """Yield the mistakes that leave a definition without a meaning, such as an unknown step in
    `needs`."""
    for name, step in definition.steps.items():
        yield from _check_graph(name, step, definition.steps)


def check(definition: Definition) -> Iterator[Problem]:
    """Yield the mistakes of a new definition that `check_graph` and the compiler do not find."""
    yield from _check_schema(("input",), definition.input, "the input of a workflow")
    if definition.schedule is not None and not schema_mistakes(definition.input):
        yield from _check_scheduled_input(definition.schedule.input, definition.input)
    for name, step in definition.steps.items():
        yield from _check_step(name, step, definition.steps)


def _check_schema(path: Path, schema: dict[str, Any], of: str) -> Iterator[Problem]:
    for mistake in schema_mistakes(schema):
        yield Problem((*path, *mistake.path), mistake.reason)
    if schema.get("type", "object") != "object":
        yield Problem((*path, "type"), f"{of} is an object")


def _check_scheduled_input(value: dict[str, Any], schema: dict[str, Any]) -> Iterator[Problem]:
    path: Path = ("schedule", "input")
    try:
        found = misfits(schema, with_numbers(schema, value))
    except TooMuchWork as error:
        yield Problem(path, str(error))
        return
    for misfit in found:
        yield Problem((*path, *misfit.path), misfit.reason)


def _check_approve(path: Path, ask: Approve) -> Iterator[Problem]:
    if ask.form is not None:
        yield from _check_schema((*path, "form"), ask.form, "the answer of a form")
    if ask.deciders is not None and ask.deciders.users and not ask.deciders.roles:
        possible = len(set(ask.deciders.users) - set(ask.deciders.excluded))
        if possible < ask.need:
            reason = f"need is {ask.need}, and only {possible} may decide"
            yield Problem((*path, "need" if ask.need > 1 else "deciders"), reason)


def _check_graph(name: str, step: StepDefinition, steps: Collection[str]) -> Iterator[Problem]:
    path: Path = ("steps", name)
    for number, needed in enumerate(step.needs):
        if needed not in steps:
            guess = did_you_mean(needed, steps)
            yield Problem((*path, "needs", number), f"there is no step {needed!r}{guess}")
    if step.on_failure not in ("fail", "continue", *steps):
        guess = did_you_mean(step.on_failure, ["fail", "continue", *steps])
        reason = f"there is no step {step.on_failure!r}{guess}"
        yield Problem((*path, "on_failure"), reason)
    if len(step.kinds) != 1:
        has = f"has {' and '.join(step.kinds)}" if step.kinds else "has none of them"
        reason = f"a step has exactly one of {', '.join(KINDS)}; this one {has}"
        yield Problem(path, reason, is_key=True)


def _check_step(name: str, step: StepDefinition, steps: Collection[str]) -> Iterator[Problem]:
    path: Path = ("steps", name)
    for field, kinds in _ONLY.items():
        if getattr(step, field) and step.kind not in kinds and len(step.kinds) == 1:
            reason = f"a step with {step.kind} has no {field}; only {' and '.join(kinds)} have it"
            yield Problem((*path, field), reason, is_key=True)
    loops = [each for each in ("for_each", "repeat") if getattr(step, each) is not None]
    if loops and step.always:
        yield Problem((*path, "always"), f"a step with {loops[0]} has no always", is_key=True)
    if len(loops) > 1:
        reason = "a step has for_each or repeat; a nested workflow may have the other"
        yield Problem((*path, "repeat"), reason, is_key=True)
    for taken in sorted(set(OF_ROUND) & set(steps)) if step.repeat is not None else ():
        reason = f"{taken} is a variable of a step with repeat: rename the step {taken!r}"
        yield Problem((*path, "repeat"), reason, is_key=True)
    if step.for_each is not None and step.for_each.as_ in steps:
        reason = f"the step {step.for_each.as_!r} has this name: choose another name"
        yield Problem((*path, "for_each", "as"), reason)
    if step.approve is not None:
        yield from _check_approve((*path, "approve"), step.approve)
    if step.call is not None:
        yield from _check_call((*path, "call"), step.call)
    if step.listen is not None and step.listen.event not in CATALOGUE:
        guess = did_you_mean(step.listen.event, CATALOGUE)
        reason = f"there is no event {step.listen.event}{guess}"
        yield Problem((*path, "listen", "event"), reason)


def _check_call(path: Path, call: Call) -> Iterator[Problem]:
    if EXPRESSION in call.url:
        reason = "the URL is a fixed text, without ${…}; a parameter may be in query"
        yield Problem((*path, "url"), reason)
    if call.body is not None and call.method == "GET":
        reason = "a GET has no body; choose another method"
        yield Problem((*path, "body"), reason, is_key=True)
    try:
        check_headers_differ(call.headers)
    except ValueError as error:
        yield Problem((*path, "headers"), str(error))


def misread(
    reads: Iterable[ReadPath],
    definition: Definition,
    input_schema: Mapping[str, Any],
    kind: StepKind | None,
) -> Iterator[str]:
    """Yield an error text for each read of a field that cannot exist. `kind` is that of the
    expression's step; None for the workflow's `output`."""
    for variable, *fields in sorted(reads):
        known: Collection[str] | None = None
        owner = variable
        step = definition.steps.get(variable)
        if step is not None and fields[:1] == ["output"]:
            known, owner = _of_output(step), f"{variable}.output"
            del fields[0]
        elif step is not None:
            known, owner = OF_STEP, "a step"
        elif variable == "result" and kind in _RUNS:
            known = OF_RESULT
        elif variable == "input" and input_schema.get("additionalProperties") is False:
            known = input_schema.get("properties", {})
        if known is not None and fields and fields[0] not in known:
            guess = did_you_mean(fields[0], known)
            listed = f" ({', '.join(known)})" if known and not guess else ""
            yield f"{owner} has no {fields[0]!r}{guess}{listed}"


def _of_output(step: StepDefinition) -> Collection[str] | None:
    """Return the fields of a step's output; None if only a run shows which it has."""
    is_list = step.for_each is not None or step.repeat is not None
    if step.output is not None or is_list or step.kind == "set":
        return None
    return {"approve": OF_APPROVAL, "call": OF_CALL}.get(step.kind, OF_RESULT)


def unknown_references(
    workflow: Workflow,
    agents: Collection[str] | None,
    workflows: Mapping[str, Collection[str]] | None,
) -> Iterator[Problem]:
    """Yield a problem for each agent or workflow that a step names and that does not exist.

    `workflows` has the versions of each workflow that can be started. If `agents` is None, the
    names of agents are not checked. If `workflows` is None, the names of workflows are not checked.
    A workflow may run itself.
    """
    for name, step in workflow.steps.items():
        match step.action:
            case Run(agent=agent) if agents is not None and agent not in agents:
                guess = did_you_mean(agent, agents) or _listed("agents", agents)
                yield Problem(("steps", name, "run", "agent"), f"there is no agent {agent}{guess}")
            case SubWorkflow(workflow=inner, version=version) if workflows is not None:
                path: Path = ("steps", name, "workflow")
                if inner == workflow.name and version in (None, workflow.version):
                    continue
                if inner not in workflows:
                    guess = did_you_mean(inner, workflows) or _listed("workflows", workflows)
                    reason = f"there is no workflow {inner}{guess}"
                    yield Problem((*path, "workflow"), reason)
                elif version is not None and version not in workflows[inner]:
                    reason = f"the workflow {inner} has no version {version}"
                    yield Problem((*path, "version"), reason)


def taken_name(workflow: Workflow, config: Config) -> Iterator[Problem]:
    """Yield a problem if a workflow's name is the id of an agent that is not this workflow.

    A run that was started by the workflow's name has this name as its agent id. If an agent had the
    same id, the workflow's run would fall under that agent's sessions, rules and policies.
    """
    agent = config.agent(workflow.name)
    if agent is not None and (agent.protocol != "workflow" or agent.agent != workflow.name):
        reason = f"the configuration has an agent {workflow.name}: choose another name"
        yield Problem(("name",), reason)


def _listed(what: str, names: Collection[str]) -> str:
    shown = sorted(names)[:5]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f" ({what}: {', '.join(shown) or 'none'}{more})"
