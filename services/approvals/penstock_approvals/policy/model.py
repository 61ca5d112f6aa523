"""The policy as a document: rules that say who decides what, and what is decided without people."""

from __future__ import annotations

from typing import Annotated, Final, Self, get_args

from pydantic import AwareDatetime, Field, model_validator

from penstock.bus.records.approvals import OnDeadline, PolicyOutcome
from penstock.dialects.base import PauseKind
from penstock.documents.fields import (
    DecidersOf,
    Duration,
    Id,
    Listed,
    Name,
    Names,
    Strict,
    Version,
    require_unique,
)

KINDS: Final = frozenset(get_args(PauseKind))  # the kinds of items
# The kinds of items that a person can only answer, because the upstreams' protocols have no form
# for a rejection. A step of a workflow can be rejected.
ANSWERED_ONLY: Final = frozenset({"input", "feedback", "selection", "credential"})
NEEDS_VALUE: Final = ANSWERED_ONLY | {"external", "long_running", "budget"}
# The kinds of items after whose deadline the run is cancelled.
CANCELS: Final = ANSWERED_ONLY | {"budget"}
MAX_RULES: Final = 1000
MAX_NEED: Final = 100


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
    remind: list[Duration] = Field(
        [],
        max_length=10,
        description="The times before the deadline at which a reminder is due, such as `30m`.",
    )
    edit: Annotated[list[Name], Listed] = Field(
        [], description="The arguments that a decider may change, such as `args.memo` or `args.*`."
    )
    danger: bool = Field(
        False,
        description="Console, links and terminal have a person type the tool's name first. No API "
        "checks this.",
    )

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        fields_set = self.model_fields_set
        if "on_deadline" in fields_set and self.deadline is None:
            raise ValueError("on_deadline needs a deadline")
        if self.remind and max(self.remind) >= (self.deadline or 0):
            raise ValueError("remind: each time must be shorter than the deadline")
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

    id: Id = Field(description="The rule's name in records.")
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
_ASKING: Final = frozenset(
    {"deciders", "need", "deadline", "on_deadline", "escalate", "remind", "edit", "danger"}
)


class Absence(Strict):
    """A time in which a delegate takes the place of a user among the deciders."""

    user: Name = Field(description="The user who is away, by name.")
    delegate: Name = Field(description="The user who decides instead.")
    begin: AwareDatetime = Field(alias="from", description="RFC 3339, with a time zone.")
    until: AwareDatetime = Field(description="RFC 3339, with a time zone.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.until <= self.begin:
            raise ValueError("until must be later than from")
        # Among deciders, this name stands for the requester of each run.
        if "requester" in (self.user, self.delegate):
            raise ValueError("user and delegate: requester is no user; name a person")
        return self


class Document(Strict):
    """A policy. It has rules in the order of their priority, and terms for all other items."""

    version: Version = Field(description="A number that grows with every change.")
    default: Terms = Field(
        Terms(edit=["*"]), description="What holds for items that no rule matches."
    )
    rules: list[Rule] = Field([], max_length=MAX_RULES)
    absences: list[Absence] = Field([], max_length=MAX_RULES)

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        require_unique([rule.id for rule in self.rules], "rules")
        return self


# The policy that applies if there is no other: the user of the run decides, and may edit the
# arguments.
BUILTIN: Final = Document.model_construct(
    version=0, default=Terms(edit=["*"]), rules=[], absences=[]
)
