"""Checks the action of a rule against the settings of this installation. Pure."""

from __future__ import annotations

from penstock.settings import Config
from penstock_automations.guard.backend import AddressRefused, Guard
from penstock_automations.rules.check import InvalidRule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.rights import check_agent


class Refusals:
    """Refuses rules whose action can never succeed with these settings and agents."""

    def __init__(self, guard: Guard, config: Config) -> None:
        self._guard = guard
        self._config = config

    def check(self, rule: Rule) -> None:
        """Check the action against the settings and the agents.

        Raises:
            InvalidRule: the guard refuses the webhook's URL; there is no such agent, or the agent
                does not accept the input of the run.
        """
        if rule.action.run is not None:
            check_agent(rule.action.run, self._config)
        if rule.action.webhook is None:
            return
        try:
            self._guard.check_url(rule.action.webhook.url)
        except AddressRefused as error:
            problem = {"field": "action.webhook.url", "reason": str(error)}
            raise InvalidRule([problem]) from None
