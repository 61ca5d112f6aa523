"""What a rule may not have in this installation, besides what its form forbids. Pure."""

from __future__ import annotations

from penstock_automations.guard.backend import AddressRefused, Guard
from penstock_automations.rules.check import InvalidRule
from penstock_automations.rules.model import Rule


class Refusals:
    """Refuses rules whose action could never succeed here."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def check(self, rule: Rule) -> None:
        """Check the action against the settings.

        Raises:
            InvalidRule: the guard refuses the webhook's URL.
        """
        try:
            self._guard.check_url(rule.action.webhook.url)
        except AddressRefused as error:
            problem = {"field": "action.webhook.url", "reason": str(error)}
            raise InvalidRule([problem]) from None
