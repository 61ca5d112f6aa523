"""Decides which rules match an event. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.expressions import Budget, ExpressionError, MissingField
from penstock.runs.depth import MAX_DEPTH
from penstock_automations.matching.facts import RunFacts
from penstock_automations.rules.records import CompiledRule


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that matches an event. `failure` says why its condition could not be evaluated."""

    rule: CompiledRule
    failure: str | None = None


def matched(rule: CompiledRule, event: Mapping[str, Any], budget: Budget) -> Match | None:
    """Return the match if the rule's condition holds, or if it cannot be evaluated; else None.

    `event` is from `event_of`. A condition that reads a missing field does not hold.

    Raises:
        TooMuch: the evaluation needs more than the budget.
    """
    if rule.trouble is not None:
        return Match(rule, rule.trouble)
    try:
        if rule.condition is None or rule.condition.holds({"event": event}, budget):
            return Match(rule)
    except MissingField:
        pass
    except ExpressionError as error:
        return Match(rule, f"the condition failed: {error}")
    return None


def depth_of(facts: RunFacts, body: Mapping[str, Any]) -> int:
    """Return how many rules led to an event. For an event about a delivery, the rule of the
    delivery counts, too."""
    depth = facts.depth
    if body["event"]["category"] == "automation":
        # Without this addition, two rules that match each other's `automation` events would fire
        # each other for ever.
        depth = max(depth, int(body["data"].get("depth") or 0)) + 1
    return depth


def may_act(rule: CompiledRule, facts: RunFacts, body: Mapping[str, Any]) -> bool:
    """Return whether the rule may act on an event of this run.

    A rule acts with its owner's rights. So it may act on its owner's runs only, unless it sees the
    runs of all users. Without `loops`, a rule may act neither on events about the rule's own
    deliveries nor on runs that the rule has caused, directly or through other rules. See also
    `depth_refusal`.
    """
    record = rule.record
    if not record.all_users and facts.owner != record.owner.user_id:
        return False
    is_delivery = body["event"]["category"] == "automation"
    if is_delivery and depth_refusal(facts, body) is not None:
        # The refusal is not announced. Otherwise, the announcement itself would be refused and
        # announced, and so on without end.
        return False
    if record.rule.loops:
        return True
    is_own_event = is_delivery and body["data"].get("automation") == rule.id
    return not is_own_event and rule.id not in facts.rules


def depth_refusal(facts: RunFacts, body: Mapping[str, Any]) -> str | None:
    """Return why no rule may act on the event; None if rules may act on it. Without this limit,
    rules that start each other's runs, or match each other's events, would never end."""
    depth = depth_of(facts, body)
    if depth < MAX_DEPTH:
        return None
    return (
        f"{depth} rules led to this event; an event of depth {MAX_DEPTH} or more triggers nothing"
    )
