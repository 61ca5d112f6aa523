"""Makes a rule from a workflow's call, so that the call can be delivered as a webhook. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import ValidationError

from penstock.runs.calls import CALLS, CallJob
from penstock_automations.rules.call_secrets import CallSecret
from penstock_automations.rules.model import Action, HeaderAuth, Rule, Webhook, fields_of
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord

MAX_HEADERS: Final = 20


class CallRefused(Exception):
    """A call can never be made. The text has the reason, without secrets."""

    def __init__(self, code: Literal["unknown_secret", "not_accepted"], text: str) -> None:
        super().__init__(text)
        self.code = code


def rule_of_call(
    call: CallJob, secrets: Mapping[str, CallSecret], user_id: str = ""
) -> CompiledRule:
    """Return a rule whose action is the call, so that the call is delivered like the webhook of a
    rule. `user_id` is the owner of the workflow's run.

    Raises:
        CallRefused: the URL or a header cannot be used, there is no secret of this name, or the
            secret is not meant for this host.
    """
    try:
        for name, value in call.headers.items():
            HeaderAuth(name=name, value=value)
        if len(call.headers) > MAX_HEADERS:
            raise CallRefused("not_accepted", f"a call has at most {MAX_HEADERS} headers")
        webhook = Webhook(url=call.url, timeout_s=call.timeout_s, expect=call.expect)
    except ValidationError as error:
        reasons = "; ".join(f"{each['field']}: {each['reason']}" for each in fields_of(error))
        raise CallRefused("not_accepted", f"the call cannot be made: {reasons}") from None
    if call.secret is not None:
        webhook = _with_secret(webhook, call.secret, secrets)
    name = call.workflow or "workflow"
    rule = Rule.model_construct(id=CALLS, name=name, action=Action(webhook=webhook))
    record = RuleRecord.model_construct(
        rule=rule, uid=CALLS, owner=Owner(user_id=user_id), created_at="", updated_at=""
    )
    return CompiledRule(record, 0, frozenset(), None)


def _with_secret(webhook: Webhook, name: str, secrets: Mapping[str, CallSecret]) -> Webhook:
    secret = secrets.get(name)
    if secret is None:
        text = f"there is no secret {name}; the operator adds it to PENSTOCK_CALL_SECRETS"
        raise CallRefused("unknown_secret", text)
    if (urlsplit(webhook.url).hostname or "").lower() not in secret.hosts:
        text = f"the secret {name} is not meant for this host; the operator lists its `hosts`"
        raise CallRefused("unknown_secret", text)
    return webhook.model_copy(update={"secrets": secret.secrets, "auth": secret.auth})
