"""A compiled workflow: its steps, with their order and their compiled expressions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.expressions import ValueExpression
from penstock_workflows.definition.model import Definition, StepKind

Role = Literal["global_supervisor", "team_supervisor", "worker"]


@dataclass(frozen=True, slots=True)
class Run:
    """Run an agent; `message` gives a text and `input` an object."""

    agent: str
    message: ValueExpression
    input: ValueExpression | None
    session: Literal["own", "parent"]


@dataclass(frozen=True, slots=True)
class SubWorkflow:
    """Run another workflow; `input` gives an object. If `version` is None, the latest version
    runs."""

    workflow: str
    version: str | None
    input: ValueExpression | None


@dataclass(frozen=True, slots=True)
class Approve:
    """Ask for a decision; `title` gives a text and `show` an object."""

    title: ValueExpression
    show: ValueExpression | None
    policy: str


@dataclass(frozen=True, slots=True)
class Call:
    """Send a webhook; `body` gives any value."""

    url: str
    body: ValueExpression | None
    secret: str | None


@dataclass(frozen=True, slots=True)
class Listen:
    """Wait for an event of the type; `where` gives a boolean, and its scope also has `event`."""

    event: str
    where: ValueExpression | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for this time."""

    duration_s: float


@dataclass(frozen=True, slots=True)
class Set:
    """Compute a value."""

    value: ValueExpression


Action: TypeAlias = Run | SubWorkflow | Approve | Call | Listen | Wait | Set


@dataclass(frozen=True, slots=True)
class ForEach:
    """The loop of a step; `in_` gives a list."""

    in_: ValueExpression
    as_: str
    limit: int


@dataclass(frozen=True, slots=True)
class Retry:
    """When a step is tried again. `codes` is None for every code that may be retried."""

    attempts: int
    backoff_s: float
    factor: float
    max_backoff_s: float
    codes: frozenset[str] | None

    def retries(self, code: str) -> bool:
        """Return whether a failure with this code may be retried."""
        if self.codes is None:
            return code not in NEVER_RETRIED
        return code in self.codes

    def backoff_after(self, attempt: int) -> float:
        """Return the seconds between a failed attempt (the first is 1) and the next one."""
        return min(self.backoff_s * self.factor ** (attempt - 1), self.max_backoff_s)


# The failure codes that a retry must name in `codes`. After `outcome_unknown`, the agent may have
# done its work. After `rejected` and `cancelled`, a person has decided. A nested workflow that
# exceeded a limit would exceed the limit again.
NEVER_RETRIED = frozenset({"outcome_unknown", "rejected", "cancelled", "limit_exceeded"})


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The people or workers for whom a step is work; each expression gives a text."""

    team: ValueExpression | None
    worker: ValueExpression | None
    task: ValueExpression | None


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled step.

    `needs` are the steps that must be done first, including the steps in `handles`. A step with
    `handles` runs only if one of the steps in `handles` has failed. `ancestors` are the needs, the
    needs of the needs, and so on. The expressions of the action, `output` and `dispatch` see the
    loop variable; `output` also sees `result`. `on_failure` is the name of the step that handles a
    failure, unless it is `fail` or `continue`.
    """

    name: str
    kind: StepKind
    action: Action
    description: str
    needs: tuple[str, ...]
    handles: tuple[str, ...]
    ancestors: frozenset[str]
    when: ValueExpression | None
    for_each: ForEach | None
    output: ValueExpression | None
    timeout_s: float | None
    retry: Retry | None
    on_failure: str
    dispatch: Dispatch | None
    role: Role | None


@dataclass(frozen=True, slots=True)
class Workflow:
    """A compiled definition. `steps` are in the order of the definition."""

    definition: Definition
    steps: Mapping[str, Step]
    output: ValueExpression | None
    timeout_s: float | None

    @property
    def name(self) -> str:
        """The name of the workflow."""
        return self.definition.name

    @property
    def version(self) -> str:
        """The version of the workflow."""
        return self.definition.version
