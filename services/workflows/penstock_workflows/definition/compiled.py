"""A compiled workflow: its steps, with their order and their compiled expressions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.expressions import ValueExpression
from penstock_workflows.definition.model import Definition, StepKind

Method = Literal["POST", "PUT", "PATCH", "DELETE", "GET"]
Role = Literal["global_supervisor", "team_supervisor", "worker"]


@dataclass(frozen=True, slots=True)
class Run:
    """Runs an agent. The value of `message` is a text, and the value of `input` is an object."""

    agent: str
    message: ValueExpression
    input: ValueExpression | None
    session: Literal["own", "parent"]


@dataclass(frozen=True, slots=True)
class SubWorkflow:
    """Runs another workflow. The value of `input` is an object. If `version` is None, the latest
    version runs."""

    workflow: str
    version: str | None
    input: ValueExpression | None


@dataclass(frozen=True, slots=True)
class Approve:
    """Asks for a decision. The value of `title` is a text, and the value of `show` is an object.
    Rules of the approvals policy see the name `policy` as the tool's name. `deciders` are as in a
    rule, and `form` is the JSON Schema of the answer."""

    title: ValueExpression
    show: ValueExpression | None
    policy: str
    need: int = 1
    deciders: Mapping[str, Any] | None = None
    form: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Sends a request. The values of `body` and `query` may be any JSON values, and those of
    `headers` are texts. `expect` has the statuses of a good answer; None for every 2xx."""

    url: str
    method: Method
    query: Mapping[str, ValueExpression]
    headers: Mapping[str, ValueExpression]
    body: ValueExpression | None
    expect: tuple[int, ...] | None
    secret: str | None


@dataclass(frozen=True, slots=True)
class Listen:
    """Waits for an event of the type `event` for which the condition `where` is true. In `where`,
    the variable `event` is the event itself."""

    event: str
    where: ValueExpression | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits for `duration_s` seconds."""

    duration_s: float


@dataclass(frozen=True, slots=True)
class Set:
    """Computes a value."""

    value: ValueExpression


Action: TypeAlias = Run | SubWorkflow | Approve | Call | Listen | Wait | Set


@dataclass(frozen=True, slots=True)
class ForEach:
    """The loop of a step. The value of `in_` is a list. A step with `repeat` has the condition
    `until` in place of `in_`, and its list is the numbers of its rounds, from 1 to `rounds`."""

    in_: ValueExpression | None
    as_: str
    limit: int
    until: ValueExpression | None = None
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Retry:
    """Tells whether and when a failed step is tried again.

    Without `codes`, a step that runs an agent or a workflow (`has_effects`) is tried again only if
    nothing was sent to the agent server; another step is tried again after every failure code
    except `NEVER_RETRIED`.
    """

    attempts: int
    backoff_s: float
    factor: float
    max_backoff_s: float
    codes: frozenset[str] | None
    has_effects: bool

    def applies_to(self, code: str, error_type: str | None) -> bool:
        """Return whether to retry a failure with this code, and this type in the agent server's own
        words."""
        if self.codes is not None:
            return code in self.codes or error_type in self.codes
        return code == "not_sent" if self.has_effects else code not in NEVER_RETRIED

    def backoff_after(self, attempt: int) -> float:
        """Return the seconds after failed attempt number `attempt`, which counts from 1."""
        return min(self.backoff_s * self.factor ** (attempt - 1), self.max_backoff_s)


# The failure codes after which a step is tried again only if `codes` names the code. After
# `outcome_unknown`, the agent may have done its work. After `rejected` and `cancelled`, a retry
# would ignore a person's decision. A nested workflow that exceeded a limit would exceed the limit
# again.
NEVER_RETRIED = frozenset({"outcome_unknown", "rejected", "cancelled", "limit_exceeded"})


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Names the team and the worker that clients see as those who do a step's task. The value of
    each expression is a text."""

    team: ValueExpression | None
    worker: ValueExpression | None
    task: ValueExpression | None


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled step.

    `needs` are the steps that must be done first, including the steps in `handles`. A step with
    `handles` runs only if one of the steps in `handles` has failed. `ancestors` are the needs, the
    needs of the needs, and so on. The expressions in `action`, `output` and `dispatch` can use the
    loop variable. `output` can also use the variable `result`. `on_failure` is the name of the step
    that handles a failure, unless it is `fail` or `continue`. With `always`, the step begins also
    in a run that has stopped.
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
    always: bool = False


@dataclass(frozen=True, slots=True)
class Exclusive:
    """Keeps runs with the same key from being under way at once. The value of `key` is a text."""

    key: ValueExpression
    when_busy: Literal["queue", "interrupt", "refuse"]


@dataclass(frozen=True, slots=True)
class Workflow:
    """A compiled definition. `steps` are in the order of the definition."""

    definition: Definition
    steps: Mapping[str, Step]
    output: ValueExpression | None
    timeout_s: float | None
    exclusive: Exclusive | None = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def version(self) -> str:
        return self.definition.version
