"""Compiles a definition: the order of its steps, and its expressions. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from penstock.expressions import (
    ExpressionError,
    ReadPath,
    Scope,
    ValueExpression,
    ValueType,
    VariableType,
)
from penstock.json_schema import types_of_fields
from penstock.validation import did_you_mean
from penstock_workflows.definition import compiled
from penstock_workflows.definition.checks import check, check_graph, misread
from penstock_workflows.definition.model import (
    OF_ROUND,
    ROUND,
    Approve,
    Call,
    Definition,
    Listen,
    Run,
    StepDefinition,
    StepKind,
    SubWorkflow,
    seconds,
)
from penstock_workflows.definition.problems import InvalidDefinition, Path, Problem

_UNDECLARED: Final = re.compile(r"undeclared reference to '([A-Za-z0-9_]+)[^']*'")

# Matches a text of plain words. Somebody who forgets the quotes that CEL needs writes such a text.
_PLAIN: Final = re.compile(r"[A-Za-z][\w ,:;!?'-]*[.!?]?")

# The types of variables for the CEL types that stay the same when a value is stored as JSON.
_STORED_TYPES: Final[Mapping[str, VariableType]] = {
    "BOOL": "boolean",
    "INT": "integer",
    "DOUBLE": "number",
    "STRING": "text",
}


def compile(
    definition: Definition, *, is_new: bool = False, unsure: Collection[Path] = ()
) -> compiled.Workflow:
    """Return the compiled workflow.

    With `is_new`, the definition is checked for all mistakes. Otherwise only mistakes that prevent
    compiling are errors, because a stored definition may be older than a check. `unsure` are the
    places of known mistakes, from which no further ones are concluded.

    Raises:
        InvalidDefinition: a step has no action or several, needs itself or an unknown step, or has
            a wrong expression.
    """
    return _Compiler(definition, is_new, {path[:3] for path in unsure}).workflow()


@dataclass(slots=True)
class _Compiler:
    definition: Definition
    is_new: bool
    unsure: set[Path]
    problems: list[Problem] = field(default_factory=list)
    # the scopes, keyed by the names of their variables; kept because making a scope takes 0.2 ms
    scopes: dict[tuple[frozenset[str], bool], Scope] = field(default_factory=dict)
    # the steps that have completed whenever a step that needs them begins: none is skipped, and the
    # failure of one ends the workflow
    certain: set[str] = field(default_factory=set)
    output_types: dict[ReadPath, VariableType] = field(default_factory=dict)

    def workflow(self) -> compiled.Workflow:
        ancestors = self._graph()
        # A step is compiled after those that it needs, because it may read their outputs.
        found = {
            name: self._step(name, self.definition.steps[name], ancestors[name])
            for name in ancestors
        }
        steps = {name: found[name] for name in self.definition.steps}
        output = self._expression(
            ("output",), self.definition.output, "any", set(self.definition.steps)
        )
        exclusive = None
        if (given := self.definition.exclusive) is not None:
            key = self._required(("exclusive", "key"), given.key, "text", ())
            exclusive = compiled.Exclusive(key, given.when_busy)
        if self.problems:
            raise InvalidDefinition(self.problems)
        timeout = self.definition.timeout
        return compiled.Workflow(self.definition, steps, output, _seconds(timeout), exclusive)

    def _graph(self) -> dict[str, frozenset[str]]:
        """Return the ancestors of each step, those that need no other first."""
        self.problems += check_graph(self.definition)
        if self.is_new:
            self.problems += check(self.definition)
        self.unsure |= {each.path[:3] for each in self.problems}
        graph = {name: self._needs(name) for name in self.definition.steps}
        while True:
            try:
                order = tuple(TopologicalSorter(graph).static_order())
                break
            except CycleError as error:
                [first, *others] = reversed(error.args[1])
                reason = f"the steps need each other: {' -> '.join([first, *others])}"
                if len(others) == 1:
                    reason = f"the step {first} needs itself"
                place: Path = ("steps", first, "needs")
                self.problems.append(Problem(place, reason))
                self.unsure.add(place)
                graph[first] = ()
        ancestors: dict[str, frozenset[str]] = {}
        for name in order:
            ancestors[name] = frozenset(graph[name]).union(*(ancestors[n] for n in graph[name]))
        return {name: self._readable(name, found) for name, found in ancestors.items()}

    def _readable(self, name: str, ancestors: frozenset[str]) -> frozenset[str]:
        """Return the ancestors of a step; all other steps if it cannot be told whom it needs."""
        if all(("steps", each, "needs") not in self.unsure for each in (name, *ancestors)):
            return ancestors
        return frozenset(self.definition.steps) - {name}

    def _handles(self, name: str) -> tuple[str, ...]:
        return tuple(n for n, step in self.definition.steps.items() if step.on_failure == name)

    def _needs(self, name: str) -> tuple[str, ...]:
        needs = [n for n in self.definition.steps[name].needs if n in self.definition.steps]
        return tuple(dict.fromkeys([*needs, *self._handles(name)]))

    def _step(self, name: str, step: StepDefinition, ancestors: frozenset[str]) -> compiled.Step:
        path: Path = ("steps", name)
        for_each = None
        inside: set[str] = set(ancestors)
        if step.repeat is not None:
            inside |= set(OF_ROUND)
            until = self._required((*path, "repeat", "until"), step.repeat.until, "boolean", inside)
            for_each = compiled.ForEach(None, ROUND, 1, until, step.repeat.rounds)
        elif step.for_each is not None:
            in_ = self._required((*path, "for_each", "in"), step.for_each.in_, "list", ancestors)
            inside.add(step.for_each.as_)
            for_each = compiled.ForEach(in_, step.for_each.as_, step.for_each.limit)
        when = self._expression((*path, "when"), step.when, "boolean", ancestors)
        output = self._expression((*path, "output"), step.output, "any", {*inside, "result"})
        actions = [self._action(path, step, kind, inside) for kind in step.kinds]
        action = actions[0] if actions else compiled.Set(self._scope(ancestors).compile("null"))
        dispatch = self._dispatch(path, step, inside)
        found = compiled.Step(
            name=name,
            kind=step.kind,
            action=action,
            description=step.description,
            needs=self._needs(name),
            handles=self._handles(name),
            ancestors=ancestors,
            when=when,
            for_each=for_each,
            output=output,
            timeout_s=_seconds(step.timeout),
            retry=_retry(step),
            on_failure=step.on_failure,
            dispatch=dispatch,
            role=step.role,
            always=step.always,
        )
        self._learn(found)
        return found

    def _learn(self, step: compiled.Step) -> None:
        """Add the step to those that always complete, and the type of its output, if it has one."""
        may_be_skipped = step.when is not None or step.handles
        if may_be_skipped or step.on_failure != "fail" or not self.certain.issuperset(step.needs):
            return
        self.certain.add(step.name)
        if isinstance(step.action, compiled.Set) and step.for_each is None:
            type_ = _STORED_TYPES.get((step.output or step.action.value).type)
            if type_ is not None:
                self.output_types[step.name, "output"] = type_

    def _action(
        self, path: Path, step: StepDefinition, kind: StepKind, names: Collection[str]
    ) -> compiled.Action:
        match getattr(step, kind):
            case Run() as run:
                message = self._required((*path, "run", "message"), run.message, "text", names)
                given = self._expression((*path, "run", "input"), run.input, "object", names)
                return compiled.Run(run.agent, message, given, run.session)
            case SubWorkflow() as sub:
                given = self._expression((*path, "workflow", "input"), sub.input, "object", names)
                action: compiled.Action = compiled.SubWorkflow(sub.workflow, sub.version, given)
            case Approve() as ask:
                title = self._required((*path, "approve", "title"), ask.title, "text", names)
                show = self._expression((*path, "approve", "show"), ask.show, "object", names)
                named = None
                if ask.deciders is not None:
                    named = ask.deciders.model_dump(by_alias=True, exclude_defaults=True)
                policy = ask.policy or str(path[-1])
                action = compiled.Approve(title, show, policy, ask.need, named, ask.form)
            case Call() as call:
                action = self._call((*path, "call"), call, names)
            case Listen() as listen:
                seen = {*names, "event"}
                where = self._expression((*path, "listen", "where"), listen.where, "boolean", seen)
                action = compiled.Listen(listen.event, where)
            case str() as text if kind == "wait":
                action = compiled.Wait(seconds(text))
            case text:
                action = compiled.Set(self._required((*path, "set"), text, "any", names))
        return action

    def _call(self, path: Path, call: Call, names: Collection[str]) -> compiled.Call:
        def each(field: str, texts: Mapping[str, str], gives: ValueType) -> Any:
            return {
                name: self._required((*path, field, name), text, gives, names)
                for name, text in texts.items()
            }

        return compiled.Call(
            url=call.url,
            method=call.method,
            query=each("query", call.query, "any"),
            headers=each("headers", call.headers, "text"),
            body=self._expression((*path, "body"), call.body, "any", names),
            expect=call.expect,
            secret=call.secret,
        )

    def _dispatch(
        self, path: Path, step: StepDefinition, names: Collection[str]
    ) -> compiled.Dispatch | None:
        if (given := step.dispatch) is None:
            return None
        texts = [
            self._expression((*path, "dispatch", name), text, "text", names)
            for name, text in (("team", given.team), ("worker", given.worker), ("task", given.task))
        ]
        return compiled.Dispatch(*texts)

    def _expression(
        self, path: Path, text: str | None, gives: ValueType, names: Collection[str]
    ) -> ValueExpression | None:
        return None if text is None else self._required(path, text, gives, names)

    def _required(
        self, path: Path, text: str, gives: ValueType, names: Collection[str]
    ) -> ValueExpression:
        """Return the compiled expression; for a wrong text, add a problem and return a
        placeholder."""
        step = self.definition.steps.get(str(path[1])) if path[0] == "steps" else None
        scope = self._scope(frozenset(names), has_types=step is None or not step.always)
        try:
            found = scope.compile(text, gives)
        except ExpressionError as error:
            reason = self._explained(error.reason, names, step) + _quotes(text, gives)
            self.problems.append(Problem(path, reason, inside=error.position))
            return scope.compile("null")
        if not self.is_new:
            return found
        kind = step.kind if step is not None else None
        reasons = misread(found.reads, self.definition, self._input, kind)
        self.problems += [Problem(path, reason) for reason in reasons]
        return found

    def _scope(self, names: frozenset[str], *, has_types: bool = True) -> Scope:
        """Return the scope of expressions that use these steps. Without `has_types`, these may not
        have ended, so that their outputs are null."""
        found = self.scopes.get((names, has_types))
        if found is None:
            # A stored definition may be older than the types of fields.
            fields: dict[ReadPath, VariableType] = {}
            if self.is_new:
                fields |= types_of_fields(self._input, ("input",))
                fields |= {
                    path: type_
                    for path, type_ in self.output_types.items()
                    if path[0] in names and has_types
                }
            found = Scope({"input": "any", "now": "time", **dict.fromkeys(names, "any")}, fields)
            self.scopes[names, has_types] = found
        return found

    def _explained(self, reason: str, names: Collection[str], step: StepDefinition | None) -> str:
        """Return the reason with advice, if a step is used that is not among the needs."""
        match = _UNDECLARED.fullmatch(reason)
        if match is None:
            return reason
        name = match[1]
        if step is not None and step is self.definition.steps.get(name):
            return f"{reason}: a step's output is `result` in output, and `last` in repeat"
        if name in self.definition.steps and step is not None:
            return f"{reason}: add {name} to `needs`, so that it is done before this step"
        known = ["input", "now", *sorted(names)]
        guess = did_you_mean(name, known) or f" (known here: {', '.join(known)})"
        return f"{reason}{guess}"

    @property
    def _input(self) -> dict[str, Any]:
        """The schema of the input, without what it says if it has mistakes."""
        return {} if any(path[0] == "input" for path in self.unsure) else self.definition.input


def _quotes(text: str, gives: ValueType) -> str:
    """Return the advice to quote a text that is made of plain words; else an empty text."""
    if gives != "text" or _PLAIN.fullmatch(text.strip()) is None:
        return ""
    quoted = f'"{text.strip()[:40]}"'
    return f". A text needs two pairs of quotes: '{quoted}'"


def _retry(step: StepDefinition) -> compiled.Retry | None:
    if (given := step.retry) is None:
        return None
    codes = frozenset(given.codes) if given.codes is not None else None
    return compiled.Retry(
        given.attempts,
        seconds(given.backoff),
        given.factor,
        seconds(given.max_backoff),
        codes,
        has_effects=step.run is not None or step.workflow is not None,
    )


def _seconds(text: str | None) -> float | None:
    return None if text is None else seconds(text)
