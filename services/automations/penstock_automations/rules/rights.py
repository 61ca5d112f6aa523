"""Checks what an action needs: scopes of the owner, agents, an allowed address. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock import start_fields
from penstock.settings import Config
from penstock_automations.guard.guard import AddressRefused, Guard
from penstock_automations.rules.actions import RunAction
from penstock_automations.rules.check import InvalidRule
from penstock_automations.rules.model import ActionKind, Rule
from penstock_automations.rules.records import Owner

_SCOPES: Final[Mapping[ActionKind, str]] = {"run": "start", "decide": "decide"}
_NO_WORKFLOW: Final = (
    "a rule starts a stored workflow through an agent of the configuration with protocol: workflow"
)


def missing_right(rule: Rule, owner: Owner) -> str | None:
    """Return why the owner may not have a rule with this action; None if the owner may have it.

    A rule acts with the rights that its owner had when the rule was written. These rights are
    checked when the rule is written, and again when the rule acts.
    """
    scope = _SCOPES.get(rule.action.kind)
    if scope is not None and not owner.has_scope(scope):
        return f"the action {rule.action.kind} needs the scope {scope}, which the owner lacks"
    webhook = rule.action.webhook
    if webhook is not None and webhook.links and not owner.has_scope("administer"):
        return "links let others decide: they need the scope administer, which the owner lacks"
    if rule.action.run is not None and not owner.user_id:
        return "a run belongs to a user, so the rule needs an owner"
    return None


def check_agent(run: RunAction, config: Config) -> None:
    """Check the action against the agents of the configuration.

    An input with placeholders is not checked here, but when the placeholders are filled.

    Raises:
        InvalidRule: there is no such agent, or the agent does not accept the input.
    """
    agent = config.agent(run.agent)
    if agent is None:
        reason = f"{config.no_agent(run.agent)}; {_NO_WORKFLOW}"
        raise InvalidRule([{"field": "action.run.agent", "reason": reason}])
    if run.input is None or run.has_placeholders_in_input:
        return
    try:
        start_fields.accepted_input(agent.protocol, agent.accepts, run.input)
    except start_fields.NotAccepted as error:
        field = "action.run.input"
        raise InvalidRule([{"field": field, "reason": str(error)}]) from None


def check_action(rule: Rule, guard: Guard, config: Config) -> None:
    """Refuse a rule whose action can never succeed with these settings and agents.

    Raises:
        InvalidRule: the guard refuses the webhook's URL; there is no such agent, or the agent does
            not accept the input of the run.
    """
    if rule.action.run is not None:
        check_agent(rule.action.run, config)
    if rule.action.webhook is None:
        return
    try:
        guard.check_url(rule.action.webhook.url)
    except AddressRefused as error:
        problem = {"field": "action.webhook.url", "reason": str(error)}
        raise InvalidRule([problem]) from None
