"""Defines what a workflow's definition may have. Pure.

The JSON Schema of `Definition` is published, so each field has a description for people. A text
that is an expression is compiled later, by `compile`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from penstock.documents.cron import Cron, check_timezone
from penstock.documents.fields import DecidersOf
from penstock.validation import HEADER_NAME, MAX_HEADERS, check_header, check_url

# The words that CEL reserves, and the names that CEL gives to types. CEL could not read an
# expression that uses a step of such a name.
_CEL_WORDS: Final = """
    as break const continue else false for function if import in let loop namespace null package
    return true var void while bool bytes double duration dyn google int list map null_type string
    timestamp type uint
"""
CEL_WORDS: Final = frozenset(_CEL_WORDS.split())
# The variables that Penstock itself gives to expressions.
OWN_VARIABLES: Final = ("input", "now", "result")
# The variables in a step with `repeat`.
OF_ROUND: Final = ("last", "round")
LAST, ROUND = OF_ROUND
# The words that `on_failure` accepts besides the names of steps.
FAILURE_WORDS: Final = ("fail", "continue")

# The longest duration in a definition: 28 days, in seconds. The record of a run is kept for 30 days
# after the run's last lifecycle event (`runs_max_age_s`). A run that waits for longer would lose
# its record, and the API could then neither show nor cancel the run.
MAX_DURATION_S: Final = 28 * 24 * 3600.0
MAX_CATCH_UP_S: Final = 7 * 24 * 3600.0
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")


def seconds(text: str) -> float:
    """Return the seconds of a duration such as `500ms`, `5s`, `1h30m` and `2d`.

    Raises:
        ValueError: the text is no duration, or the duration is zero or longer than 28 days.
    """
    if len(text) > 64 or _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text[:64]!r} is no duration: write it as in 500ms, 5s, 1h30m or 2d")
    found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if not 0 < found <= MAX_DURATION_S:
        raise ValueError(f"{text!r} must be longer than zero and at most 28 days")
    return found


def _checked_variable(name: str) -> str:
    if name in CEL_WORDS or name in OWN_VARIABLES:
        raise ValueError(f"the name {name!r} is reserved: choose another name")
    return name


def _checked_step(name: str) -> str:
    if name in FAILURE_WORDS:
        raise ValueError(f"the name {name!r} is reserved: choose another name")
    return _checked_variable(name)


def _checked_duration(text: str) -> str:
    seconds(text)
    return text


def _checked_cron(expression: str) -> str:
    Cron.parse(expression, "UTC")  # whether there are times does not depend on the time zone
    return expression


def _checked_timezone(name: str) -> str:
    check_timezone(name)
    return name


def _checked_catch_up(text: str) -> str:
    if not 60 <= seconds(text) <= MAX_CATCH_UP_S:
        raise ValueError(f"{text!r} must be at least 1m and at most 7d")
    return text


def _checked_url(url: str) -> str:
    check_url(url, "secret")
    return url


def _checked_header(name: str) -> str:
    check_header(name, "secret")
    return name


_VARIABLE: Final = r"^[A-Za-z][A-Za-z0-9_]{0,62}$"
_WORKFLOW: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
_VERSION: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
_ID: Final = r"^[A-Za-z0-9_.-]{1,128}$"
_URL: Final = r"^https?://[^\s]+$"
_EVENT: Final = r"^[a-z_]{1,32}\.[a-z_]{1,64}$"
_PARAMETER: Final = r"^[\x21-\x7e]{1,64}$"
# Describes, in words for people, what each pattern allows.
PATTERNS: Final = {
    _VARIABLE: "a name has letters, digits and _, begins with a letter, and has at most 63 of them",
    _WORKFLOW: "a name has letters, digits, _ and -, and at most 64 of them",
    _VERSION: "a version has letters, digits, _, - and single dots, as in 1.2",
    _ID: "an id has letters, digits, _, . and -, and at most 128 of them",
    _URL: "a URL begins with https:// or http:// and has no blank",
    _EVENT: "the type of an event is as in lifecycle.completed",
    HEADER_NAME: "the name of a header has letters, digits and -, and at most 64 of them",
    _PARAMETER: "the name of a parameter has no blank, and at most 64 characters of ASCII",
}

# The name of a step or of a loop variable. Expressions use this name for a variable.
VariableName = Annotated[str, Field(pattern=_VARIABLE), AfterValidator(_checked_variable)]
StepName = Annotated[str, Field(pattern=_VARIABLE), AfterValidator(_checked_step)]
# The name of a workflow. It has no dot, because it is one token of the keys in the bucket.
WorkflowName = Annotated[str, Field(pattern=_WORKFLOW)]
Version = Annotated[str, Field(pattern=_VERSION, max_length=32)]
Id = Annotated[str, Field(pattern=_ID)]
# The URL of a webhook. The check refuses secrets in the URL, because everybody with the scope
# `read` sees the definition.
Url = Annotated[str, Field(pattern=_URL, max_length=2000), AfterValidator(_checked_url)]
HeaderName = Annotated[str, Field(pattern=HEADER_NAME), AfterValidator(_checked_header)]
ParameterName = Annotated[str, Field(pattern=_PARAMETER)]
EventType = Annotated[str, Field(pattern=_EVENT)]
Duration = Annotated[
    str, Field(examples=["500ms", "5s", "1h30m", "2d"]), AfterValidator(_checked_duration)
]
Status = Annotated[int, Field(ge=200, le=599)]  # of an HTTP answer
# The text of an expression in CEL, or of a template.
Expression = Annotated[str, Field(min_length=1, max_length=2000)]


DSL: Final = "penstock/1"
MAX_STEPS: Final = 200
MAX_NEEDS: Final = 100
MAX_ITEMS: Final = 1000  # the greatest number of items of one `for_each`
MAX_ROUNDS: Final = 100
MAX_ATTEMPTS: Final = 20
MAX_NEED: Final = 100

StepKind = Literal["run", "workflow", "approve", "call", "listen", "wait", "set"]
KINDS: Final[tuple[StepKind, ...]] = get_args(StepKind)


class Part(BaseModel):
    """The base of all parts of a definition. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Run(Part):
    """Runs an agent of the configuration, and waits for the end of its run."""

    agent: Id = Field(description="The id of the agent in the configuration.")
    message: Expression = Field(description="An expression that gives the message, a text.")
    input: Expression | None = Field(
        None,
        description="An expression that gives an object: further fields for the agent, as `input` "
        "of `POST /v1/runs`.",
    )
    session: Literal["own", "parent"] = Field(
        "own",
        description="`own`: a session of this step alone. `parent`: the session of the workflow's "
        "run, so that steps with the same agent share one conversation.",
    )


class SubWorkflow(Part):
    """Runs another workflow, and waits for its end."""

    workflow: WorkflowName = Field(description="The name of the workflow.")
    version: Version | None = Field(
        None, description="Its version. Default: the latest when the step starts."
    )
    input: Expression | None = Field(
        None, description="An expression that gives its input, an object."
    )


class Approve(Part):
    """Asks people for a decision, and waits for it until the step's `timeout`. A rejection fails
    the step."""

    title: Expression = Field(description="An expression that gives the question, a text.")
    show: Expression | None = Field(
        None, description="An expression that gives an object: what deciders see."
    )
    policy: Id | None = Field(
        None,
        description="The name that rules of the approvals policy see as the tool's name. "
        "Default: the name of the step.",
    )
    deciders: DecidersOf | None = Field(
        None,
        description="Who may decide. What the policy says of deciders holds, too. Default: as the "
        "policy says.",
    )
    need: int = Field(
        1, strict=True, ge=1, le=MAX_NEED, description="How many different people must approve."
    )
    form: dict[str, Any] | None = Field(
        None,
        description="The JSON Schema of an object that whoever approves fills in. The answer is "
        "`result.data`.",
    )


class Call(Part):
    """Sends a request, signed with a secret of the operator, and waits for the answer."""

    url: Url = Field(
        description="The URL, a fixed text. The service automations sends the request and limits "
        "which addresses it may reach.",
    )
    method: Literal["POST", "PUT", "PATCH", "DELETE", "GET"] = Field(
        "POST", description="The method of the request."
    )
    query: dict[ParameterName, Expression] = Field(
        {},
        max_length=50,
        description="Further parameters of the URL, by their names: expressions. Null leaves the "
        "parameter out, and a list repeats it.",
    )
    headers: dict[HeaderName, Expression] = Field(
        {},
        max_length=MAX_HEADERS,
        description="Further headers, by their names: expressions that give texts, which are no "
        "secrets.",
    )
    body: Expression | None = Field(
        None, description="An expression that gives the body, any JSON value; not with `GET`."
    )
    expect: Annotated[tuple[Status, ...], Field(min_length=1, max_length=20)] | None = Field(
        None,
        description="The statuses of a good answer, such as `[200, 404]`. Default: every 2xx.",
    )
    secret: Id | None = Field(None, description="The name of the secret that signs the request.")


class Listen(Part):
    """Waits for an event."""

    event: EventType = Field(
        description="The type of the event, such as `lifecycle.completed`.",
    )
    where: Expression | None = Field(
        None,
        description="A condition on the `event`. Default: the first event of the type.",
    )


class ForEach(Part):
    """Carries out the step once for each element of a list."""

    in_: Expression = Field(alias="in", description="An expression that gives a list.")
    as_: VariableName = Field(
        "item", alias="as", description="The name of the variable that is the element."
    )
    limit: int = Field(
        10,
        ge=1,
        le=100,
        description="How many elements are under way at the same time.",
    )


class Repeat(Part):
    """Carries out the step in rounds, one after another, until a condition holds."""

    until: Expression = Field(
        description="A condition, after each round: `last` is the output of this round, and "
        "`round` its number, from 1. If it holds, the step is done."
    )
    rounds: int = Field(
        ge=1,
        le=MAX_ROUNDS,
        description="How many rounds there are at most. If the condition does not hold after the "
        "last one, the step fails with code `until_not_met`.",
    )


class Retry(Part):
    """Carries out a failed step again."""

    attempts: int = Field(
        ge=1, le=MAX_ATTEMPTS, description="How often the step is tried, with the first attempt."
    )
    backoff: Duration = Field("1s", description="The time before the second attempt.")
    factor: float = Field(
        2.0, ge=1, le=10, description="By how much each further time is longer than the last."
    )
    max_backoff: Duration = Field("5m", description="The longest time between two attempts.")
    codes: Annotated[tuple[str, ...], Field(max_length=50)] | None = Field(
        None,
        description="The failure codes after which the step is tried again: codes of failed runs, "
        "or an agent server's own types of errors. Default: only `not_sent` for a step that runs "
        "an agent or a workflow, since after any other failure the agent may have done some of its "
        "work; for another step every code but `outcome_unknown`, `rejected`, `cancelled` and "
        "`limit_exceeded`.",
    )


class Dispatch(Part):
    """Tells clients that the step is work for a team or for a worker."""

    team: Expression | None = Field(None, description="An expression that gives the team's name.")
    worker: Expression | None = Field(
        None, description="An expression that gives the worker's name."
    )
    task: Expression | None = Field(None, description="An expression that gives the task, a text.")


class StepDefinition(Part):
    """One step. It has exactly one of the fields from `run` to `set`."""

    run: Run | None = Field(None, description="Run an agent.")
    workflow: SubWorkflow | None = Field(None, description="Run another workflow.")
    approve: Approve | None = Field(None, description="Ask people for a decision.")
    call: Call | None = Field(None, description="Send an HTTP request.")
    listen: Listen | None = Field(None, description="Wait for an event.")
    wait: Duration | None = Field(None, description="Wait for this time.")
    set: Expression | None = Field(
        None, description="An expression whose value is the step's output."
    )
    description: str = Field("", max_length=1000, description="What the step does, for people.")
    needs: Annotated[tuple[StepName, ...], Field(max_length=MAX_NEEDS)] = Field(
        (), description="The steps that must be done before this step starts."
    )
    when: Expression | None = Field(
        None, description="A condition. If it is false, the step is skipped."
    )
    for_each: ForEach | None = Field(
        None, description="Carry out the step for each element of a list."
    )
    repeat: Repeat | None = Field(
        None, description="Carry out the step in rounds, until a condition holds."
    )
    output: Expression | None = Field(
        None,
        description="An expression that gives the step's output from `result`. Default: `result`.",
    )
    timeout: Duration | None = Field(
        None, description="The time after which one attempt of the step fails with code `timeout`."
    )
    retry: Retry | None = Field(None, description="Carry out the step again if it fails.")
    on_failure: Annotated[str, Field(max_length=63)] = Field(
        "fail",
        description="`fail`: the workflow fails. `continue`: the workflow goes on, and later steps "
        "see `<step>.error`. The name of a step: as `continue`, and that step runs, which is "
        "skipped otherwise.",
    )
    always: bool = Field(
        False,
        description="Carry out the step also after the workflow has failed or was cancelled. The "
        "status of steps that had not ended then is `cancelled`.",
    )
    dispatch: Dispatch | None = Field(None, description="For whom the step is work.")
    role: Literal["global_supervisor", "team_supervisor", "worker"] | None = Field(
        None,
        description="The `agent_type` of the agent's events. Default: by `dispatch`.",
    )

    @property
    def kinds(self) -> list[StepKind]:
        """The actions of the step. A step that has not exactly one is refused."""
        return [kind for kind in KINDS if getattr(self, kind) is not None]

    @property
    def kind(self) -> StepKind:
        return next(iter(self.kinds), "set")


class Exclusive(Part):
    """Lets one run of the workflow be under way at a time, for each key and tenant."""

    key: Expression = Field(description="An expression over `input` that gives a text.")
    when_busy: Literal["queue", "interrupt", "refuse"] = Field(
        "queue",
        description="What a start does while runs with its key are under way or wait: `queue` "
        "waits for their ends, `interrupt` cancels them first, `refuse` fails with code `busy`.",
    )


class Schedule(Part):
    """Starts runs of the latest version at the times of a cron expression."""

    cron: Annotated[str, AfterValidator(_checked_cron)] = Field(
        max_length=200,
        description="A cron expression of five fields: minute, hour, day of the month, month, day "
        "of the week.",
    )
    timezone: Annotated[str, AfterValidator(_checked_timezone)] = Field(
        "UTC", max_length=100, description="The time zone, by its name in the IANA database."
    )
    catch_up: Annotated[Duration, AfterValidator(_checked_catch_up)] = Field(
        "1h",
        description="How late a time may be fired, from `1m` to `7d`, if nothing could fire it in "
        "time. Of several missed times, only the latest is fired.",
    )
    input: dict[str, Any] = Field({}, description="The input of the runs.")
    user: Id | None = Field(
        None,
        description="The user whose runs they are. Default: who stores the version. A file must "
        "name one.",
    )


class Definition(Part):
    """The definition of a workflow."""

    dsl: Literal["penstock/1"] = Field(description="The language: `penstock/1`.")
    name: WorkflowName = Field(description="The workflow's name.")
    version: Version = Field(
        description="The version, a text. A version that is stored never changes."
    )
    title: str = Field("", max_length=200, description="The name that people see.")
    description: str = Field("", max_length=4000, description="What the workflow does, for people.")
    topology_id: int | None = Field(
        None, ge=0, description="The number by which the executions contract names the workflow."
    )
    input: dict[str, Any] = Field(
        {"type": "object"},
        description="The JSON Schema of the input, an object.",
    )
    steps: dict[StepName, StepDefinition] = Field(
        min_length=1, max_length=MAX_STEPS, description="The steps, by their names."
    )
    output: Expression | None = Field(
        None,
        description="An expression that gives the workflow's output from the outputs of its steps. "
        "Default: null.",
    )
    concurrency: int = Field(
        20, ge=1, le=100, description="How many runs and calls are under way at the same time."
    )
    timeout: Duration | None = Field(
        None, description="The time after which the workflow fails with code `timeout`."
    )
    schedule: Schedule | None = Field(None, description="When runs are started without a request.")
    exclusive: Exclusive | None = Field(
        None, description="Which runs of the workflow are not under way at the same time."
    )
