"""Gives a rule the secrets that its author left out: the earlier secrets, or new secrets. Pure."""

from __future__ import annotations

from typing import Any

from penstock_automations.rules.model import Rule
from penstock_automations.rules.secrets import new_secret, new_token, origin_of
from penstock_automations.rules.triggers import Hook


def with_secrets(rule: Rule, earlier: Rule | None) -> Rule:
    """Return the rule with its missing secrets added: the earlier rule's secrets, or new ones.

    A webhook to another server than before gets a new secret. With the earlier one, the new server
    could sign in the name of Penstock to the earlier server.
    """
    webhook = rule.action.webhook
    if webhook is not None and not webhook.secrets:
        before = earlier.action.webhook if earlier is not None else None
        is_same = before is not None and origin_of(before.url) == origin_of(webhook.url)
        kept = before.secrets if before is not None and is_same else []
        changed = webhook.model_copy(update={"secrets": kept or [new_secret()]})
        action = rule.action.model_copy(update={"webhook": changed})
        rule = rule.model_copy(update={"action": action})
    if rule.hook is not None and not (rule.hook.secrets or rule.hook.tokens):
        made = _of_hook(rule.hook, earlier.hook if earlier is not None else None)
        rule = rule.model_copy(update={"hook": rule.hook.model_copy(update=made)})
    return rule


def _of_hook(hook: Hook, earlier: Hook | None) -> dict[str, Any]:
    if earlier is not None and earlier.tokens:
        return {"tokens": earlier.tokens}
    if earlier is not None and earlier.secrets and not hook.token_in_url:
        return {"secrets": earlier.secrets}
    return {"tokens": [new_token()]} if hook.token_in_url else {"secrets": [new_secret()]}
