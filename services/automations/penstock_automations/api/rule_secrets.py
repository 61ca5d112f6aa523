"""Serves the routes that replace the secrets of a rule."""

from __future__ import annotations

from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from penstock.web.bodies import ignore_body
from penstock.web.operation import Parameter, json, one_of, serves
from penstock.web.problems import Problem
from penstock_automations.api.bodies import ACT_AS, CHANGED, IF_MATCH, RULE, RotateBody
from penstock_automations.api.common import RULE_ID, operation, optional_body
from penstock_automations.api.stored_rules import StoredRules
from penstock_automations.rules.check import InvalidRule, read_rule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.secrets import check_secret, new_secret, new_token

PREVIOUS: Final = 2  # how many secrets a rule has while a new secret replaces the old one


class RuleSecrets:
    """The handlers of the routes."""

    def __init__(self, rules: StoredRules) -> None:
        self._rules = rules

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/secrets",
            summary="Begin to replace a secret: both are valid until the previous one is removed",
            answers={200: CHANGED},
            parameters=(RULE_ID, IF_MATCH),
            body=RotateBody,
            body_required=False,
            example={"of": "webhook"},
            sometimes={"act-as": ACT_AS},
            refusals=(404, 409, 412),
        )
    )
    async def rotate(self, request: Request) -> Response:
        rule = await self._rules.writable(request)
        body = await optional_body(request, RotateBody)
        name, present = _secrets(rule.record.rule, body.of)
        if len(present) >= PREVIOUS:
            raise Problem(
                409,
                "two secrets are valid already: first remove the previous one (DELETE "
                f"/v1/automations/{rule.id}/secrets/previous?of={body.of})",
            )
        if body.secret is not None and name == "secrets":
            try:
                check_secret(body.secret)
            except ValueError as error:
                raise _invalid_secret(str(error)) from None
        secret = body.secret or (new_secret() if name == "secrets" else new_token())
        changed = _with_secrets(rule, body.of, name, [secret, *present])
        record = await self._rules.replace_secrets(rule, changed)
        return await self._rules.respond_with(record, {} if body.secret else {body.of: secret})

    @serves(
        operation(
            method="DELETE",
            path="/v1/automations/{rule_id}/secrets/previous",
            summary="Remove the previous secret; only the new one is valid then",
            answers={200: json("The rule", RULE)},
            parameters=(
                RULE_ID,
                IF_MATCH,
                Parameter("of", "`webhook` (default) or `hook`", one_of(("webhook", "hook"))),
            ),
            refusals=(404, 409, 412),
        )
    )
    async def end_rotation(self, request: Request) -> Response:
        """End a rotation: remove the old secret. A single secret is not removed."""
        await ignore_body(request)
        rule = await self._rules.changeable(request)
        of = request.query_params.get("of", "webhook")
        if of not in ("webhook", "hook"):
            raise Problem(422, "of: must be webhook or hook")
        name, present = _secrets(rule.record.rule, of)
        record = rule.record
        if len(present) == PREVIOUS:
            record = await self._rules.replace_secrets(
                rule, _with_secrets(rule, of, name, present[:1])
            )
        return await self._rules.respond_with(record, {})


def _with_secrets(rule: CompiledRule, of: str, name: str, secrets: list[str]) -> Rule:
    fields = rule.record.rule.model_dump()
    holder = fields["hook"] if of == "hook" else fields["action"]["webhook"]
    holder[name] = secrets
    try:
        return read_rule(fields, Rule)
    except InvalidRule as error:
        raise _invalid_secret(error.problems[0]["reason"]) from None


def _secrets(rule: Rule, of: Literal["webhook", "hook"] | str) -> tuple[str, list[str]]:
    """Return the name of the field with the secrets of the webhook or the hook, and the secrets.

    Raises:
        Problem: 409 if the rule has no webhook or no hook, as `of` says.
    """
    if of == "hook":
        if rule.hook is None:
            raise Problem(409, "the rule has no hook, so it has no secret for one")
        name = "tokens" if rule.hook.tokens else "secrets"
        return name, getattr(rule.hook, name)
    if rule.action.webhook is None:
        raise Problem(409, "the rule sends no webhook, so it has no secret for one")
    return "secrets", rule.action.webhook.secrets


def _invalid_secret(reason: str) -> Problem:
    return Problem(422, f"secret: {reason}", errors=[{"field": "secret", "message": reason}])
