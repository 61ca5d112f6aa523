"""Decides which rules match an event. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.expressions import Bound, ExpressionError, MissingField
from penstock.runs.depth import MAX_DEPTH
from penstock_automations.matching.facts import RunFacts
from penstock_automations.rules.records import CONDITIONS, CompiledRule, event_of


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that matches an event. `failure` says why its condition could not be evaluated."""

    rule: CompiledRule
    failure: str | None = None


def matches(
    rules: Iterable[CompiledRule],
    bound: Bound | ExpressionError,
    clock: Callable[[], float],
    took: Callable[[CompiledRule, float], None],
) -> list[Match]:
    """Return the rules that match the event, and the rules whose condition cannot be evaluated.

    `bound` is from `bound_event`. A condition that reads a missing field does not hold. A condition
    that cannot be evaluated has no effect on other rules. `took` is called with each rule and the
    seconds of its evaluation, measured with `clock`.
    """
    found = []
    for rule in rules:
        if rule.trouble is not None:
            found.append(Match(rule, rule.trouble))
        elif rule.condition is None:
            found.append(Match(rule))
        elif isinstance(bound, ExpressionError):
            found.append(Match(rule, f"the condition failed: {bound}"))
        else:
            begun = clock()
            try:
                if rule.condition.holds(bound):
                    found.append(Match(rule))
            except MissingField:
                pass
            except ExpressionError as error:
                found.append(Match(rule, f"the condition failed: {error}"))
            took(rule, clock() - begun)
    return found


def bound_event(body: Mapping[str, Any], size_bytes: int) -> Bound | ExpressionError:
    """Convert an event to a value that the conditions of all rules can use.

    Return the error if CEL cannot represent the event. The conversion costs as much as the
    evaluation of a condition, so convert each event only once.
    """
    try:
        return CONDITIONS.bind({"event": event_of(body)}, size_bytes)
    except ExpressionError as error:
        return error


def depth_of(facts: RunFacts, body: Mapping[str, Any]) -> int:
    """Return how many rules led to an event.

    For an event about a delivery, the rule of the delivery counts, too.
    """
    depth = max(facts.depth, len(facts.rules))
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
    """Return why no rule may act on the event; None if rules may act on it.

    Without this limit, rules that start each other's runs, or match each other's events, would
    never end.
    """
    depth = depth_of(facts, body)
    if depth < MAX_DEPTH:
        return None
    return (
        f"{depth} rules led to this event; an event of depth {MAX_DEPTH} or more triggers nothing"
    )
