"""Apply a policy to a pause: the items for whose decision a run waits. Pure.

The policy decides the pause automatically, or says who is asked.

The first rule that matches an item applies to the item. If the condition of a rule cannot be
evaluated, people are asked. The item then gets the next rule that asks people. So nobody can get
around a rule with an argument that the rule's condition cannot read. If the failed rule would
reject, the requester may not decide the item: the requester has chosen the argument. A pause is
decided automatically only if each of its items is decided automatically. Otherwise people decide
the whole pause, on the strictest terms of all items. A decider must fit the terms of each item. The
largest required number of people must approve, and the earliest deadline counts.

A step of a workflow may have terms of its own. They hold beside those of the policy. Where the
policy names no deciders, those of the step decide in place of the requester. So a definition cannot
have a decision taken by people whom the policy does not allow, and a rule that approves does not
take the decision from the step's deciders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from penstock.budgets.document import Budgets
from penstock.budgets.model import Asking
from penstock.bus.records.approvals import (
    Deciders,
    Escalation,
    ItemRuling,
    OnDeadline,
    PolicyOutcome,
    PolicyRef,
)
from penstock.documents.fields import DecidersOf, fits_any
from penstock.documents.reading import digest_of
from penstock.documents.store import Source
from penstock.expressions import (
    MAX_STEPS,
    Budget,
    Condition,
    Conditions,
    ExpressionError,
    TooMuch,
    VariableType,
)
from penstock_approvals.policy.deciding_rights import REQUESTER
from penstock_approvals.policy.model import (
    ANSWERED_ONLY,
    BUILTIN,
    DEFAULT_ID,
    NEEDS_VALUE,
    Document,
    EscalationStep,
    Match,
    Rule,
    Terms,
)

VARIABLES: Final[Mapping[str, VariableType]] = {
    "tool": "text",
    "args": "object",
    "kind": "text",
    "agent": "text",
    "protocol": "text",
    "session_id": "text",
    "user": "text",
    "roles": "texts",
    "items": "objects",
    "now": "time",
    "depth": "integer",
    "run": "object",
}
CONDITIONS: Final = Conditions(VARIABLES)


PAUSE_STEPS: Final = 10 * MAX_STEPS  # of all conditions about one pause; about two seconds


@dataclass(slots=True)
class _PauseBudget:
    """The steps that the conditions about a pause may still take. `is_final` says that a condition
    which needs more steps counts as failed."""

    steps: int
    is_final: bool

    def holds(self, condition: Condition, data: Mapping[str, Any]) -> bool:
        """Return whether the condition holds. Raises ExpressionError, or TooMuch if not final."""
        budget = Budget(min(self.steps, MAX_STEPS))
        before = budget.steps
        try:
            return condition.holds(data, budget)
        except TooMuch as error:
            if not self.is_final:
                raise
            raise ExpressionError(f"the condition is given up, since {error}") from None
        finally:
            self.steps -= before - max(budget.steps, 0)


@dataclass(frozen=True, slots=True)
class StepTerms:
    """Who decides by the definition of a workflow; without `deciders`, that is left to the
    policy."""

    deciders: DecidersOf | None = None
    need: int = 1


@dataclass(frozen=True, slots=True)
class Question:
    """The facts of a pause that a policy reads. `items` are the items of `approval.requested`.
    `step` has the terms of a workflow's step, if it has any."""

    agent: str
    user: str
    items: Sequence[Mapping[str, Any]]
    now: datetime
    session_id: str = ""
    protocol: str = ""
    roles: Sequence[str] = ()
    started_by: Sequence[str] = ()  # who else is behind the run
    depth: int = 0  # how many automation rules led to the run
    run: Mapping[str, Any] = field(default_factory=dict)
    step: StepTerms | None = None


class Matched(StrEnum):
    """Whether a rule matches an item."""

    YES = "matches"
    NO = "does not match"
    ERROR = "cannot be decided"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether and why a rule matches an item, and whether the item gets the rule's terms."""

    rule_id: str
    match: Matched
    reason: str
    applies: bool = False


@dataclass(frozen=True, slots=True)
class ItemResult:
    """The terms of an item, and the verdict of each rule up to the rule that applies. `further` are
    terms that hold beside those of the rule."""

    item_id: str
    rule_id: str
    outcome: PolicyOutcome
    terms: Terms
    verdicts: Sequence[Verdict]
    further: Sequence[Terms] = ()

    @property
    def errors(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.match is Matched.ERROR]


@dataclass(frozen=True, slots=True)
class Ruling:
    """The result of applying a policy to a pause."""

    outcome: Literal["approve", "reject", "mixed", "ask"]
    policy: PolicyRef
    deciders: list[Deciders]
    need: int
    expires_at: str | None
    on_deadline: OnDeadline
    escalate: list[Escalation]
    items: list[ItemRuling]
    results: Sequence[ItemResult]

    @property
    def rule_id(self) -> str:
        return self.policy.rule_id

    @property
    def is_automatic(self) -> bool:
        return self.outcome != "ask"

    def fields(self) -> dict[str, Any]:
        """Return the fields of an ApprovalRecord that keep the ruling."""
        return {
            "policy": self.policy,
            "rulings": self.items,
            "deciders": self.deciders,
            "need": self.need,
            "expires_at": self.expires_at,
            "on_deadline": self.on_deadline,
            "escalations": self.escalate,
        }


class Policy:
    """Applies a policy. The constructor raises ExpressionError for the first wrong condition;
    `document.parse` finds the lines of all."""

    def __init__(self, document: Document = BUILTIN, source: Source = "builtin") -> None:
        self.document = document
        self.source: Source = source
        self.digest = digest_of(document)
        self._conditions: dict[str, Condition] = {
            rule.id: CONDITIONS.compile(rule.when) for rule in document.rules if rule.when
        }

    @property
    def version(self) -> int:
        return self.document.version

    def reads(self, variable: str) -> bool:
        name = re.compile(rf"\b{variable}\b")
        return any(rule.when and name.search(rule.when) for rule in self.document.rules)

    def outcome_of(self, question: Question, max_steps: int | None = None) -> Ruling:
        """Return the ruling of the policy on a pause.

        If the conditions together need more than `PAUSE_STEPS` steps, the further conditions cannot
        be evaluated, and people are asked.

        Raises:
            TooMuch: the conditions need more than `max_steps`, if this is set.
        """
        budget = _PauseBudget(PAUSE_STEPS if max_steps is None else max_steps, max_steps is None)
        results = [self._result(question, item, budget) for item in question.items]
        if question.step is not None:
            results = [self._as_step_asks(each, question.step) for each in results]
        kinds = {str(item["item_id"]): str(item.get("kind")) for item in question.items}
        automatic = all(
            _may_be_automatic(each.outcome, kinds[each.item_id], question.protocol)
            for each in results
        )
        if automatic and results:
            return self._ruling(
                question, results, [], outcome=_together(results), rule_id=results[0].rule_id
            )
        asking = [each for each in results if each.outcome == "ask"]
        terms = [terms for each in asking for terms in (each.terms, *each.further)]
        terms = terms or [self.document.default]
        return self._ruling(
            question, results, terms, outcome="ask", rule_id=_first(self.document, asking)
        )

    def _result(
        self, question: Question, item: Mapping[str, Any], budget: _PauseBudget
    ) -> ItemResult:
        verdicts: list[Verdict] = []
        is_unclear = may_be_rejected = False
        data = _data(question, item)
        for rule in self.document.rules:
            match, reason = self._match(rule, question, item, data=data, budget=budget)
            is_unclear = is_unclear or match is Matched.ERROR
            may_be_rejected |= match is Matched.ERROR and rule.outcome == "reject"
            applies = match is not Matched.NO and (rule.outcome == "ask" or not is_unclear)
            verdicts.append(Verdict(rule.id, match, reason, applies))
            if applies:
                terms = _without_requester(rule) if may_be_rejected else rule
                return ItemResult(str(item["item_id"]), rule.id, rule.outcome, terms, verdicts)
        default = self.document.default
        outcome: PolicyOutcome = "ask" if is_unclear else default.outcome
        terms = _without_requester(default) if may_be_rejected else default
        return ItemResult(str(item["item_id"]), DEFAULT_ID, outcome, terms, verdicts)

    def _as_step_asks(self, result: ItemResult, step: StepTerms) -> ItemResult:
        """Return the result with the terms of the workflow's step."""
        if result.outcome == "reject":
            return result
        written = base = self.document.default
        if result.outcome == "ask":
            base = result.terms
            rules = (rule for rule in self.document.rules if rule.id == result.rule_id)
            written = next(rules, written)
        need = max(base.need, step.need)
        terms = base.model_copy(update={"outcome": "ask", "need": need})
        if step.deciders is None:
            return replace(result, outcome="ask", terms=terms)
        # People whom the policy excludes stay excluded.
        excluded = [*step.deciders.excluded, *base.deciders.excluded]
        deciders = step.deciders.model_copy(update={"excluded": excluded})
        if "deciders" in written.model_fields_set:
            further = [Terms(deciders=deciders, need=step.need)]
            return replace(result, outcome="ask", terms=terms, further=further)
        terms = terms.model_copy(update={"deciders": deciders})
        return replace(result, outcome="ask", terms=terms)

    def _match(
        self,
        rule: Rule,
        question: Question,
        item: Mapping[str, Any],
        *,
        data: Mapping[str, Any],
        budget: _PauseBudget,
    ) -> tuple[Matched, str]:
        mismatch = _mismatch(rule.match, question, item)
        if mismatch is not None:
            return Matched.NO, mismatch
        condition = self._conditions.get(rule.id)
        if condition is None:
            return Matched.YES, "it matches, and has no condition"
        try:
            holds = budget.holds(condition, data)
        except ExpressionError as error:
            return Matched.ERROR, f"its condition has an error, so the item is asked: {error}"
        match = Matched.YES if holds else Matched.NO
        return match, f"its condition is {'true' if holds else 'false'}"

    def _ruling(
        self,
        question: Question,
        results: Sequence[ItemResult],
        terms: Sequence[Terms],
        *,
        outcome: Literal["approve", "reject", "mixed", "ask"],
        rule_id: str,
    ) -> Ruling:
        deadlines = [each.deadline for each in terms if each.deadline is not None]
        at_deadline = {each.on_deadline for each in terms if each.deadline is not None}
        groups: list[tuple[DecidersOf, list[EscalationStep]]] = []
        deciders: list[Deciders] = []
        escalate: list[Escalation] = []
        for each in terms:
            if (asked := (each.deciders, each.escalate)) in groups:
                continue
            groups.append(asked)
            deciders.append(self._present(_deciders(each.deciders), question))
            for step in each.escalate:
                # People whom a rule excludes are excluded from its escalations, too.
                to = self._present(_deciders(step.to, each.deciders.excluded), question)
                at = _stamp(question.now, step.after)
                escalate.append(Escalation(at=at, to=to, group=len(groups) - 1))
        earliest = min(deadlines, default=0)
        before = {time for each in terms for time in each.remind if time < earliest}
        escalate += [Escalation(at=_stamp(question.now, earliest - each)) for each in before]
        return Ruling(
            outcome=outcome,
            policy=PolicyRef(rule_id=rule_id, version=self.version, digest=self.digest),
            deciders=deciders,
            need=max((each.need for each in terms), default=1),
            expires_at=_stamp(question.now, earliest) if deadlines else None,
            on_deadline=at_deadline.pop() if len(at_deadline) == 1 else "reject",
            escalate=sorted(escalate, key=lambda each: each.at),
            items=[
                ItemRuling(
                    item_id=each.item_id,
                    rule_id=each.rule_id,
                    outcome=each.outcome,
                    note=each.terms.note,
                    edit=list(each.terms.edit),
                    danger=each.terms.danger,
                )
                for each in results
            ],
            results=results,
        )

    def _present(self, deciders: Deciders, question: Question) -> Deciders:
        """Return the deciders with the delegate in the place of each named user who is away.

        A delegate who is among the users already, or is excluded, takes no place, and nobody takes
        the place of a user who is excluded. So as many people may decide as before, and nobody whom
        the policy excludes.
        """
        excluded = set(deciders.excluded)
        if REQUESTER in excluded:
            excluded |= {question.user, *question.started_by}
        away = {
            each.user: each.delegate
            for each in reversed(self.document.absences)  # the first one of a user counts
            if each.begin <= question.now < each.until
            and excluded.isdisjoint((each.user, each.delegate))
        }
        users = list(deciders.users)
        for place, name in enumerate(users):
            delegate = _delegate(name, away)
            if delegate not in {question.user if each == REQUESTER else each for each in users}:
                users[place] = delegate
        return deciders.model_copy(update={"users": users})


def asked_by_budget(items: Sequence[Mapping[str, Any]], budgets: Budgets, now: datetime) -> Ruling:
    """Return the ruling on a pause for a budget: people are asked on the budget's own terms. The
    requester is asked about a budget that was deleted meanwhile."""
    [item] = items
    budget = budgets.by_id.get(str(item["args"]["budget"]))
    asking = budget.ask if budget is not None else Asking()
    rule_id = f"budget:{item['args']['budget']}"
    return Ruling(
        outcome="ask",
        policy=PolicyRef(rule_id=rule_id, version=budgets.version, digest=budgets.digest),
        deciders=[_deciders(asking.deciders)],
        need=asking.need,
        expires_at=_stamp(now, asking.deadline) if asking.deadline is not None else None,
        on_deadline="leave" if asking.on_deadline == "leave" else "reject",
        escalate=[],
        items=[ItemRuling(item_id=str(item["item_id"]), rule_id=rule_id, outcome="ask")],
        results=[],
    )


def _without_requester(terms: Terms) -> Terms:
    excluded = [*terms.deciders.excluded, REQUESTER]
    deciders = terms.deciders.model_copy(update={"excluded": excluded})
    return terms.model_copy(update={"deciders": deciders})


def _delegate(user: str, away: Mapping[str, str]) -> str:
    """Return the first in the chain of a user's delegates who is not away; the user if there is
    none."""
    name, passed = user, {user}
    while name in away:
        name = away[name]
        if name in passed:
            return user
        passed.add(name)
    return name


def _may_be_automatic(outcome: PolicyOutcome, kind: str, protocol: str) -> bool:
    if outcome == "reject" and protocol == "workflow":
        return True
    impossible = {"ask": None, "approve": NEEDS_VALUE, "reject": ANSWERED_ONLY}[outcome]
    return impossible is not None and kind not in impossible


def _together(results: Sequence[ItemResult]) -> Literal["approve", "reject", "mixed"]:
    outcomes = {each.outcome for each in results}
    if outcomes == {"approve"}:
        return "approve"
    return "reject" if outcomes == {"reject"} else "mixed"


def _first(document: Document, asking: Sequence[ItemResult]) -> str:
    """Return the id of the first rule of the policy that asks people."""
    asked = {each.rule_id for each in asking}
    return next((rule.id for rule in document.rules if rule.id in asked), DEFAULT_ID)


def _deciders(deciders: DecidersOf, excluded: Sequence[str] = ()) -> Deciders:
    return Deciders(
        scope=deciders.scope,
        roles=list(deciders.roles),
        users=list(deciders.users),
        excluded=list(dict.fromkeys([*deciders.excluded, *excluded])),
    )


def _mismatch(match: Match, question: Question, item: Mapping[str, Any]) -> str | None:
    facts = {
        "agent": question.agent,
        "tool": str(item.get("tool") or ""),
        "kind": str(item.get("kind") or ""),
        "user": question.user,
    }
    for name, value in facts.items():
        patterns = getattr(match, name)
        if not fits_any(value, patterns):
            return f"{name}: {value or '(none)'} is not {' or '.join(patterns)}"
    if match.roles is not None and not set(match.roles) & set(question.roles):
        return f"roles: the user has none of {', '.join(match.roles)}"
    return None


def _data(question: Question, item: Mapping[str, Any]) -> dict[str, Any]:
    args = item.get("args")
    items = [
        {
            "item_id": each["item_id"],
            "kind": each.get("kind"),
            "tool": each.get("tool") or "",
            "args": each.get("args") or {},
        }
        for each in question.items
    ]
    return {
        "tool": str(item.get("tool") or ""),
        "args": args if isinstance(args, dict) else {},
        "kind": str(item.get("kind") or ""),
        "agent": question.agent,
        "protocol": question.protocol,
        "session_id": question.session_id,
        "user": question.user,
        "roles": list(question.roles),
        "items": items,
        "depth": question.depth,
        "run": dict(question.run),
        "now": question.now,
    }


def _stamp(now: datetime, after_s: int) -> str:
    """Return `now` plus `after_s` seconds, rounded up to a whole second for the scheduler."""
    at = math.ceil((now + timedelta(seconds=after_s)).timestamp())
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
