"""The policy as a document: rules that say who decides what, and what is decided without people."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from penstock.bus.records import OnDeadline, PolicyOutcome
from penstock.dialects.base import PauseKind
from penstock.web.auth.grants import Permission

KINDS: Final = frozenset(get_args(PauseKind))  # the kinds of items
# The kinds of items that a person can only answer, because the upstreams' protocols have no form
# for a rejection.
ANSWERED_ONLY: Final = frozenset({"input", "feedback", "selection", "credential"})
NEEDS_VALUE: Final = ANSWERED_ONLY | {"external", "long_running"}
MAX_RULES: Final = 1000
MAX_NEED: Final = 100
_DURATION: Final = re.compile(r"(\d{1,6})(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("a duration is a number and s, m, h or d, such as 30m")
    return int(match[1]) * _SECONDS[match[2]]


Name = Annotated[str, Field(min_length=1, max_length=256)]
Names = Annotated[
    list[Name],
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
    Field(min_length=1, max_length=1000),
]
# the seconds of a text such as `30m`, or a number of seconds
Duration = Annotated[
    int,
    BeforeValidator(_seconds, json_schema_input_type=int | str),
    Field(strict=True, ge=1, le=366 * 86400),
]


class Strict(BaseModel):
    """The base of all parts of a policy. An unknown field is an error, because a rule with a
    misspelt field would otherwise have no effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(Strict):
    """The conditions under which a rule applies.

    Each field is one pattern or a list of patterns. In a pattern, `*` stands for any text.
    """

    agent: Names = Field(["*"], description="Ids of agents.")
    tool: Names = Field(["*"], description="Names of tools; an item without a tool has none.")
    kind: Names = Field(["*"], description="Kinds of items, such as `confirmation`.")
    user: Names = Field(["*"], description="Users whose runs ask.")
    roles: Names | None = Field(None, description="The asking user has one of these roles.")

    @model_validator(mode="after")
    def _check_kinds(self) -> Self:
        unknown = [kind for kind in self.kind if "*" not in kind and kind not in KINDS]
        if unknown:
            known = ", ".join(sorted(KINDS))
            raise ValueError(f"kind: {', '.join(unknown)} is unknown; the kinds are {known}")
        return self


class DecidersOf(Strict):
    """The people who may decide.

    A person needs the scope. If the lists are not empty, the person also needs one of the roles or
    one of the names.
    """

    scope: Permission = Field("decide", description="The scope that a decider needs.")
    roles: list[Name] = Field([], description="A decider has one of these roles ...")
    users: list[Name] = Field(
        [], description="... or one of these names; `requester` is the user whose run asks."
    )
    excluded: list[Name] = Field(
        [], alias="not", description="Who may not decide, such as `requester`."
    )


class EscalationStep(Strict):
    """The people who may also decide after nobody has decided for some time."""

    after: Duration = Field(description="The time since the question, such as `30m`.")
    to: DecidersOf


class Terms(Strict):
    """What happens to an item.

    Either the policy decides the item automatically, or people are asked, on these terms.
    """

    outcome: PolicyOutcome = Field("ask", description="`approve`, `reject` or `ask`.")
    note: str | None = Field(
        None, max_length=2000, description="The reason of an automatic outcome; the agent gets it."
    )
    deciders: DecidersOf = Field(
        DecidersOf(users=["requester"]),
        description="Who may decide; the requester, if nothing is said.",
    )
    need: int = Field(1, strict=True, ge=1, le=MAX_NEED, description="How many must approve.")
    deadline: Duration | None = Field(
        None, description="The time to decide, such as `24h`; without one, the run waits forever."
    )
    on_deadline: OnDeadline = Field(
        "reject", description="What the end of the deadline means: `reject`, `approve` or `leave`."
    )
    escalate: list[EscalationStep] = Field([], max_length=10)
    edit: Annotated[
        list[Name], BeforeValidator(_listed, json_schema_input_type=str | list[str])
    ] = Field(
        [], description="The arguments that a decider may change, such as `args.memo` or `args.*`."
    )

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        fields_set = self.model_fields_set
        if "on_deadline" in fields_set and self.deadline is None:
            raise ValueError("on_deadline needs a deadline")
        late = [step.after for step in self.escalate if step.after >= (self.deadline or 2**31)]
        if late:
            raise ValueError("escalate: each `after` must be shorter than the deadline")
        deciders = self.deciders
        possible = len(set(deciders.users) - set(deciders.excluded))
        if deciders.users and not deciders.roles and possible < self.need:
            raise ValueError(f"need is {self.need}, and only {possible} may decide")
        for path in self.edit:
            if path != "*" and not path.startswith("args."):
                raise ValueError(f"edit: {path!r} is no argument; write args.{path} or args.*")
        return self


class Rule(Terms):
    """A rule of the policy.

    It says what happens to the items that the rule matches. The first rule that matches an item
    applies.
    """

    id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="The rule's name in records.")
    match: Match = Field(Match(), description="What the rule is about.")
    when: str | None = Field(None, min_length=1, description="A condition in CEL.")
    outcome: PolicyOutcome = Field(description="`approve`, `reject` or `ask`.")

    @model_validator(mode="after")
    def _check_rule(self) -> Self:
        asking = self.model_fields_set & _ASKING
        if self.outcome != "ask" and asking:
            raise ValueError(f"{', '.join(sorted(asking))}: only a rule with `outcome: ask` asks")
        if self.id == DEFAULT_ID:
            raise ValueError(f"id: {DEFAULT_ID} is the name of what holds without a rule")
        return self


DEFAULT_ID: Final = "default"
_ASKING: Final = frozenset({"deciders", "need", "deadline", "on_deadline", "escalate", "edit"})


class Document(Strict):
    """A policy. It has rules in the order of their priority, and terms for all other items."""

    version: int = Field(
        strict=True, ge=1, le=2**53, description="A number that grows with every change."
    )
    default: Terms = Field(
        Terms(edit=["*"]), description="What holds for items that no rule matches."
    )
    rules: list[Rule] = Field([], max_length=MAX_RULES)

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        ids = [rule.id for rule in self.rules]
        if twice := sorted({id_ for id_ in ids if ids.count(id_) > 1}):
            raise ValueError(f"rules: these ids are used twice: {', '.join(twice)}")
        return self


Source = Literal["builtin", "file", "kv"]
# The policy that applies if there is no other: the user of the run decides, and may edit the
# arguments.
BUILTIN: Final = Document.model_construct(version=0, default=Terms(edit=["*"]), rules=[])
