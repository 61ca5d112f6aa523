"""Reads a document with the tests of a workflow. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from pydantic import AwareDatetime, Field, ValidationError

from penstock.json_schema import misfits
from penstock.runs.workflows import input_of
from penstock.validation import did_you_mean
from penstock_workflows.definition import InvalidDefinition, Loaded, Problem, Step
from penstock_workflows.definition.compiled import Approve
from penstock_workflows.definition.document import Document, read_document
from penstock_workflows.definition.loading import problem_of
from penstock_workflows.definition.model import Part, StepKind, StepName
from penstock_workflows.definition.problems import Path


class Answer(Part):
    """What comes back to an attempt of a step."""

    text: str | None = Field(None, description="The answer as a text.")
    data: Any = Field(
        None,
        description="The answer as a JSON value: of an agent, a workflow or a call; the value that "
        "a person gives; the `data` of an event.",
    )
    status: int = Field(200, ge=100, le=599, description="The status of the answer to a call.")
    headers: dict[str, str] = Field({}, description="The headers of the answer to a call.")
    decision: Literal["approve", "reject", "expire"] | None = Field(
        None, description="What a person decides; `expire`: nobody decides in time."
    )
    by: str = Field("somebody", description="Who decides.")
    note: str | None = Field(None, description="The note of the decision.")
    failed: str | None = Field(None, description="The code with which the run or call fails.")
    message: str = Field("the test says so", description="The reason of the failure.")
    never: bool = Field(
        False, description="Nothing comes back, so that only a timeout ends the attempt."
    )


# By the kind of the step: what its answer may have, and the field for which a text stands.
_FIELDS: Final[Mapping[StepKind, tuple[str, ...]]] = {
    "run": ("text", "data", "failed", "message", "never"),
    "workflow": ("text", "data", "failed", "message", "never"),
    "call": ("text", "data", "status", "headers", "failed", "message", "never"),
    "approve": ("decision", "by", "note", "data", "never"),
    "listen": ("data", "never"),
    "wait": (),
    "set": (),
}
_SHORT: Final[Mapping[StepKind, str]] = {"approve": "decision"}
# A list has an answer for each item of a `for_each`; of another step, or inside, for each attempt.
Answers: TypeAlias = "Answer | list[Answers]"


class Expected(Part):
    """How the run ends, and what its steps do. What is left out may be anything."""

    status: Literal["completed", "failed", "cancelled"] = Field(
        "completed", description="How the run ends."
    )
    output: Any = Field(None, description="The output of the workflow.")
    code: str | None = Field(None, description="The code with which the run fails.")
    steps: tuple[StepName, ...] | None = Field(
        None, description="The steps that begin, in their order."
    )
    sent: dict[StepName, Any] = Field(
        {},
        description="What steps send: the message of a run, the title of an approval, or an object "
        "with some of the fields; a list of these for items and attempts.",
    )


class Case(Part):
    """One test."""

    input: dict[str, Any] = Field({}, description="The input of the run.")
    message: str = Field("", description="The message of the start.")
    now: AwareDatetime = Field(
        datetime(2026, 1, 1, tzinfo=UTC), description="The time at which the run starts."
    )
    answers: dict[StepName, Any] = Field(
        {},
        description="What comes back to steps: a text, an object, or a list of these for the items "
        "of a `for_each`, or for attempts.",
    )
    cancel_at: StepName | None = Field(
        None, description="The run is cancelled when this step begins."
    )
    expect: Expected = Field(Expected(), description="What is expected of the run.")


class Cases(Part):
    """A document with tests of one workflow."""

    workflow: str = Field(
        description="The file with the definition; the path begins in the folder of this document."
    )
    tests: dict[str, Case] = Field(min_length=1, description="The tests, by their names.")


@dataclass(frozen=True, slots=True)
class Test:
    """A test that fits its workflow. `path` is its place in the document."""

    path: Path
    case: Case
    answers: Mapping[str, Answers]


@dataclass(frozen=True, slots=True)
class TestDocument:
    """The tests of a document, and the places of their mistakes."""

    cases: Cases
    document: Document

    def tests_of(self, loaded: Loaded) -> list[Test]:
        """Return the tests. Raises InvalidDefinition if one names what the workflow lacks."""
        steps = loaded.workflow.steps
        problems: list[Problem] = []
        found = []
        for name, case in self.cases.tests.items():
            path: Path = ("tests", name)
            problems += _misfits(path, case, loaded)
            answers = {
                step: _answers((*path, "answers", step), value, steps[step], problems)
                for step, value in case.answers.items()
                if step in steps
            }
            found.append(Test(path, case, answers))
        if problems:
            raise InvalidDefinition(map(self.document.located, problems))
        return found


def read_tests(content: bytes) -> TestDocument:
    """Return the tests in a document of YAML or JSON. Raises InvalidDefinition."""
    document = read_document(content)
    problems = list(document.problems)
    try:
        cases = Cases.model_validate(document.value)
    except ValidationError as error:
        problems += [problem_of(each, Cases) for each in error.errors(include_url=False)]
    if problems:
        raise InvalidDefinition(map(document.located, problems))
    return TestDocument(cases, document)


def _misfits(path: Path, case: Case, loaded: Loaded) -> Iterator[Problem]:
    steps, schema = loaded.workflow.steps, loaded.workflow.definition.input
    for misfit in misfits(schema, input_of(schema, case.input, case.message)):
        yield Problem((*path, "input", *misfit.path), misfit.reason)
    named: list[tuple[Path, str]] = [
        *((("answers", name), name) for name in case.answers),
        *((("expect", "sent", name), name) for name in case.expect.sent),
        *((("expect", "steps", at), name) for at, name in enumerate(case.expect.steps or ())),
    ]
    if case.cancel_at is not None:
        named.append((("cancel_at",), case.cancel_at))
    for place, name in named:
        if name not in steps:
            guess = did_you_mean(name, steps)
            yield Problem((*path, *place), f"there is no step {name!r}{guess}")


def _answers(path: Path, value: Any, step: Step, problems: list[Problem]) -> Answers:
    if isinstance(value, list):
        return [_answers((*path, at), each, step, problems) for at, each in enumerate(value)]
    kind, action = step.kind, step.action
    try:
        answer = Answer.model_validate(
            {_SHORT.get(kind, "text"): value} if isinstance(value, str) else value
        )
    except ValidationError as error:
        for each in error.errors(include_url=False):
            problem = problem_of(each, Answer)
            inside = () if isinstance(value, str) else problem.path
            problems.append(replace(problem, path=(*path, *inside)))
        return []
    known = _FIELDS[kind]
    for field in sorted(answer.model_fields_set - set(known)):
        has = f"has no {field}; it has {', '.join(known)}" if known else "does not exist"
        is_text = isinstance(value, str)
        place = path if is_text else (*path, field)
        problems.append(
            Problem(place, f"the answer to a step with {kind} {has}", is_key=not is_text)
        )
    if kind == "approve" and answer.decision is None and not answer.never:
        problems.append(Problem(path, "a decision is missing: approve, reject or expire"))
    if isinstance(action, Approve) and action.form is not None and answer.decision == "approve":
        found = misfits(action.form, answer.data)
        problems += [Problem((*path, "data", *each.path), each.reason) for each in found]
    return answer
