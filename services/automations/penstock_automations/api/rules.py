"""Serves the routes of rules: list, create, show, change, delete, pause, resume, new secrets."""

from __future__ import annotations

import logging
from typing import Any, Final

from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from penstock.validation import Part
from penstock.web.answers import cursor_of, cursor_parts, json_answer, page_after
from penstock.web.auth import Identity, identity_of
from penstock.web.bodies import ignore_body, read_json, read_query
from penstock.web.operation import (
    OBJECT,
    TEXT,
    Parameter,
    an_object,
    in_query,
    json,
    one_of,
    serves,
)
from penstock.web.problems import Problem
from penstock_automations.api.bodies import (
    ACT_AS,
    CHANGED,
    EXAMPLE,
    IF_MATCH,
    RULE,
    RULE_AND_SECRETS,
    ApiRule,
    PauseBody,
    RotateBody,
    merged,
    shown_rule,
)
from penstock_automations.api.common import (
    MAX_BODY_BYTES,
    MAX_PAGE,
    RULE_ID,
    a_page,
    found_rule,
    operation,
    optional_body,
    time_of,
)
from penstock_automations.api.stored_rules import (
    StoredRules,
    etag_of,
    matches_all_users,
    may_see_all_runs,
    owner_of,
)
from penstock_automations.delivery.listing import DeliveryList
from penstock_automations.rules.check import problems_of
from penstock_automations.rules.hidden import made_secrets, with_secrets
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, RuleRecord
from penstock_automations.rules.secrets import new_secret, new_token
from penstock_automations.rules.store import VersionConflict

log = logging.getLogger(__name__)


class Query(Part):
    """Which rules to list."""

    limit: int = Field(100, ge=1, le=MAX_PAGE, description="How many rules a page has at most")
    after: str | None = Field(None, max_length=1000, description="`next` of the page before")
    outcomes_since: str | None = Field(
        None,
        max_length=40,
        description="Each rule then has `outcomes`: how many of its deliveries that began at this "
        "time or later are `waiting`, `delivered` and `failed`, each up to 100,000",
    )


_FILTERS: Final = in_query(Query)
_DELETED: Final = an_object(id=TEXT, waiting={"type": "integer"})
PREVIOUS: Final = 2  # how many secrets a rule has while a new secret replaces the old one


class Rules:
    """The handlers of the routes."""

    def __init__(self, rules: StoredRules, deliveries: DeliveryList) -> None:
        self._rules = rules
        self._deliveries = deliveries

    @serves(
        operation(
            method="GET",
            path="/v1/automations",
            summary="The caller's rules by id; with the scope administer, all rules",
            answers={200: json("A page", a_page("automations", RULE))},
            parameters=_FILTERS,
        )
    )
    async def index(self, request: Request) -> Response:
        query = read_query(request, Query)
        who = identity_of(request)
        await self._rules.current.refresh()
        stored = self._rules.current.stored()
        own = [each for each in stored if who.manages(each.record.owner.user_id)]
        own.sort(key=lambda rule: rule.id)
        [after] = cursor_parts(query.after, str) if query.after is not None else (None,)
        page, more = page_after(own, after, query.limit, lambda rule: rule.id)
        shown = [shown_rule(rule.record) for rule in page]
        if query.outcomes_since is not None:
            since = int(time_of(query.outcomes_since, "outcomes_since").timestamp() * 1000)
            names = [(rule.id, rule.record.uid) for rule in page]
            counts = await self._deliveries.outcomes(names, since)
            for each, outcomes in zip(shown, counts, strict=True):
                each["outcomes"] = outcomes
        return json_answer({"automations": shown, "next": cursor_of(page[-1].id) if more else None})

    @serves(
        operation(
            method="POST",
            path="/v1/automations",
            summary="Make a rule; it acts with the caller's rights",
            answers={201: json("The rule", RULE_AND_SECRETS)},
            body=ApiRule,
            example=EXAMPLE,
            sometimes={"act-as": ACT_AS},
            refusals=(409,),
        )
    )
    async def create(self, request: Request) -> Response:
        """Store a new rule, and respond when the rule matches events."""
        who = identity_of(request)
        asked, warnings = self._rules.read(await read_json(request, MAX_BODY_BYTES), None)
        owner = owner_of(who)
        everybody = matches_all_users(asked.all_users, owner, may_see_all_runs(owner))
        record = await self._rules.make(
            asked.plain,
            owner,
            all_users=everybody,
            expected=0,
            refusal=f"the id {asked.id} is taken, perhaps by a rule of the operator or another "
            "user, which you cannot see; choose another",
        )
        secrets = made_secrets(asked, record.rule, None)
        return await self._rules.respond_with(record, secrets, 201, warnings=warnings)

    @serves(
        operation(
            method="GET",
            path="/v1/automations/{rule_id}",
            summary="One rule, without its secrets",
            answers={200: json("The rule", RULE)},
            parameters=(RULE_ID,),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> Response:
        rule = await found_rule(request, self._rules.store)
        return json_answer(self._rules.shown(rule.record), etag=etag_of(rule))

    @serves(
        operation(
            method="PUT",
            path="/v1/automations/{rule_id}",
            summary="Replace a rule; `(hidden)` in place of a secret keeps the secret",
            answers={200: CHANGED},
            parameters=(RULE_ID, IF_MATCH),
            body=ApiRule,
            example=EXAMPLE,
            sometimes={"act-as": ACT_AS},
            refusals=(404, 409, 412),
        )
    )
    async def replace(self, request: Request) -> Response:
        rule = await self._rules.writable(request)
        value = await read_json(request, MAX_BODY_BYTES)
        return await self._change(identity_of(request), rule, value)

    @serves(
        operation(
            method="PATCH",
            path="/v1/automations/{rule_id}",
            summary="Change some fields of a rule, by a merge patch (RFC 7396)",
            answers={200: CHANGED},
            parameters=(RULE_ID, IF_MATCH),
            body=OBJECT,
            body_types=("application/json", "application/merge-patch+json"),
            example={"enabled": False},
            sometimes={"act-as": ACT_AS},
            refusals=(404, 409, 412),
        )
    )
    async def change(self, request: Request) -> Response:
        rule = await self._rules.writable(request)
        patch = await read_json(request, MAX_BODY_BYTES)
        if not isinstance(patch, dict):
            raise Problem(422, "a merge patch is a JSON object")
        value = merged(shown_rule(rule.record), patch)
        return await self._change(identity_of(request), rule, value)

    @serves(
        operation(
            method="DELETE",
            path="/v1/automations/{rule_id}",
            summary="Delete a rule; its deliveries that wait fail",
            answers={200: json("How many deliveries waited, and fail now", _DELETED)},
            parameters=(RULE_ID, IF_MATCH),
            refusals=(404, 409, 412),
        )
    )
    async def delete(self, request: Request) -> Response:
        await ignore_body(request)
        rule = await self._rules.changeable(request)
        waiting = await self._deliveries.count((rule.id, rule.record.uid), "waiting")
        try:
            await self._rules.store.delete(rule.id, rule.revision)
        except VersionConflict as error:
            raise Problem(409, f"{error}: read it again") from error
        by = identity_of(request).user_id
        log.info("rule %s was deleted by %s: %d waiting deliveries fail", rule.id, by, waiting)
        await self._rules.changed()
        return json_answer({"id": rule.id, "waiting": waiting})

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/pause",
            summary="Pause a rule: it matches nothing, and its deliveries wait",
            answers={200: json("The rule", RULE)},
            parameters=(RULE_ID,),
            body=PauseBody,
            body_required=False,
            example={"reason": "the receiver moves"},
            refusals=(404,),
        )
    )
    async def pause(self, request: Request) -> Response:
        """Pause the rule, even if it comes from the file. Leave a paused rule unchanged."""
        rule = await found_rule(request, self._rules.store)
        body = await optional_body(request, PauseBody)
        by = identity_of(request).user_id
        reason = body.reason or f"paused by {by}"
        await self._rules.store.pause(rule.id, reason, by, rule.record.uid)
        return await self._rules.respond_with_current(request)

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/resume",
            summary="End the pause of a rule: it matches events from now on",
            answers={200: json("The rule", RULE)},
            parameters=(RULE_ID,),
            refusals=(404,),
        )
    )
    async def resume(self, request: Request) -> Response:
        """End the pause, even if the rule comes from the file. Leave an active rule unchanged."""
        await ignore_body(request)
        rule = await found_rule(request, self._rules.store)
        await self._rules.store.resume(rule.id, rule.record.uid)
        return await self._rules.respond_with_current(request)

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
        secret = body.secret or (new_secret() if name == "secrets" else new_token())
        changed = _with_secrets(rule, body.of, name, [secret, *present])
        record = await self._replace_secrets(rule, changed)
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
        """End a rotation. A single secret is not removed."""
        await ignore_body(request)
        rule = await self._rules.changeable(request)
        of = request.query_params.get("of", "webhook")
        if of not in ("webhook", "hook"):
            raise Problem(422, "of: must be webhook or hook")
        name, present = _secrets(rule.record.rule, of)
        record = rule.record
        if len(present) == PREVIOUS:
            changed = _with_secrets(rule, of, name, present[:1])
            record = await self._replace_secrets(rule, changed)
        return await self._rules.respond_with(record, {})

    async def _replace_secrets(self, rule: CompiledRule, changed: Rule) -> RuleRecord:
        record = rule.record
        return await self._rules.apply(
            changed,
            record.owner,
            all_users=record.all_users,
            expected=rule.revision,
            refusal=f"the rule {rule.id} was changed at the same time: try again",
        )

    async def _change(self, who: Identity, rule: CompiledRule, value: Any) -> Response:
        if isinstance(value, dict):
            value = {"id": rule.id, **value}
            if value["id"] != rule.id:
                raise Problem(422, "id: a rule keeps its id; make another rule and delete this one")
        record = rule.record
        asked, warnings = self._rules.read(value, record.rule)
        # If an administrator changes another user's rule, the rule keeps the rights of its owner.
        owner = owner_of(who) if record.owner.user_id == who.user_id else record.owner
        everybody = matches_all_users(asked.all_users, owner, record.all_users)
        stored = record
        wanted = with_secrets(asked.plain, record.rule)
        if (wanted, owner, everybody) != (record.rule, record.owner, record.all_users):
            text = f"the rule {rule.id} was changed at the same time: read it again"
            stored = await self._rules.apply(
                asked.plain, owner, all_users=everybody, expected=rule.revision, refusal=text
            )
        secrets = made_secrets(asked, stored.rule, record.rule)
        return await self._rules.respond_with(stored, secrets, warnings=warnings)


def _with_secrets(rule: CompiledRule, of: str, name: str, secrets: list[str]) -> Rule:
    fields = rule.record.rule.model_dump()
    holder = fields["hook"] if of == "hook" else fields["action"]["webhook"]
    holder[name] = secrets
    try:
        return Rule.model_validate(fields)
    except ValidationError as error:
        raise _invalid_secret(problems_of(error, Rule)[0]["reason"]) from None


def _secrets(rule: Rule, of: str) -> tuple[str, list[str]]:
    """Return the name of the field with the secrets of the webhook or the hook, and the secrets.
    Raises Problem 409 if the rule has no webhook or no hook, as `of` says."""
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
