"""Serves the routes of rules: list, create, show, change, delete, pause, resume, secrets."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus.connection.clock import Clock
from penstock.web.auth import Identity, identity_of
from penstock.web.bodies import ignore_body, read_json
from penstock.web.operation import (
    FLAG,
    OBJECT,
    TEXT,
    Answer,
    Json,
    Parameter,
    a_list,
    an_object,
    json,
    one_of,
    serves,
)
from penstock.web.problems import Problem, invalid
from penstock_automations.api.bodies import (
    EXAMPLE,
    ApiRule,
    PauseBody,
    RotateBody,
    merged,
    shown_rule,
    without_read_only,
)
from penstock_automations.api.common import (
    MAX_BODY_BYTES,
    MAX_PAGE,
    RULE_ID,
    a_page,
    answer,
    asked,
    cursor_of,
    found_rule,
    invalid_rule,
    may_use,
    operation,
    optional_body,
    place_of,
)
from penstock_automations.rules.check import InvalidRule, read_rule
from penstock_automations.rules.cron import rfc3339
from penstock_automations.rules.hidden import made, restored
from penstock_automations.rules.kept_secrets import with_secrets
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord
from penstock_automations.rules.refusals import Refusals
from penstock_automations.rules.rights import missing_right
from penstock_automations.rules.secrets import check_secret, new_secret, new_token
from penstock_automations.rules.store import Conflict, CurrentRules, RuleStore

SHOWN_TIMES: Final = 5  # how many next times of a schedule a client sees
PREVIOUS: Final = 2  # how many secrets a rule has while a new secret replaces the old one


class Query(BaseModel):
    """Which rules to list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=MAX_PAGE, description="How many rules a page has at most")
    after: str | None = Field(None, max_length=1000, description="`next` of the page before")


_FILTERS: Final = tuple(
    Parameter(name, str(schema.pop("description")), schema)
    for name, schema in Query.model_json_schema()["properties"].items()
)
_IF_MATCH: Final = Parameter(
    "If-Match",
    "The ETag of the rule that the caller has read. If the rule has changed since, the answer is "
    "412, and nothing changes.",
    place="header",
)
RULE: Final[Json] = an_object(
    id=TEXT,
    name=TEXT,
    action=OBJECT,
    enabled=FLAG,
    all_users=FLAG,
    version={"type": "integer"},
    owner=an_object(user_id=TEXT, roles=a_list(TEXT), scopes=a_list(TEXT)),
    source=one_of(("api", "file")),
    paused={"type": ["object", "null"]},
    created_at=TEXT,
    updated_at=TEXT,
) | {"description": "`next_times`: the next times of a schedule, unless the rule is paused"}
_MADE: Final[Json] = {
    "type": "object",
    "description": "Secrets that the server has made, by the part of the rule that has them. No "
    "other answer shows them.",
    "additionalProperties": TEXT,
}
_RULE_AND_SECRETS: Final[Json] = {
    "allOf": [RULE, {"type": "object", "properties": {"new_secrets": _MADE}}]
}
_ACT_AS: Final = (
    "for all_users, unless the caller has administer; and to write another user's rule, which also "
    "needs administer"
)
_CHANGED: Final = json("The rule", _RULE_AND_SECRETS)


class Rules:
    """The handlers of the routes.

    `changed` is awaited after a write; it returns when the stored rules match every new event.
    `most` is the number of rules that one user may have. `clock` has NATS's time.
    """

    def __init__(
        self,
        store: RuleStore,
        current: CurrentRules,
        refusals: Refusals,
        changed: Callable[[], Awaitable[None]],
        most: int,
        clock: Clock,
    ) -> None:
        self._store = store
        self._current = current
        self._refusals = refusals
        self._changed = changed
        self._most = most
        self._clock = clock
        self._making = asyncio.Lock()

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
        """Return a page of the rules that the caller may see."""
        try:
            query = Query.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise invalid(error) from error
        who = identity_of(request)
        await asked(self._current.refresh())
        own = [each for each in self._current.all() if may_use(who, each.record)]
        own.sort(key=lambda rule: rule.id)
        begin = 0
        if query.after is not None:
            [last] = place_of(query.after, str)
            begin = bisect.bisect_right(own, last, key=lambda rule: rule.id)
        page = own[begin : begin + query.limit]
        more = len(own) > begin + len(page)
        return answer(
            {
                "automations": [shown_rule(rule.record) for rule in page],
                "next": cursor_of(page[-1].id) if more else None,
            }
        )

    @serves(
        operation(
            method="POST",
            path="/v1/automations",
            summary="Make a rule; it acts with the caller's rights",
            answers={201: json("The rule", _RULE_AND_SECRETS)},
            body=ApiRule,
            example=EXAMPLE,
            sometimes={"act-as": _ACT_AS},
            refusals=(409,),
        )
    )
    async def create(self, request: Request) -> Response:
        """Store a new rule, and respond when the rule matches events."""
        who = identity_of(request)
        given = self._read(await read_json(request, MAX_BODY_BYTES), None)
        owner = _owner(who)
        everybody = _all_users(given.all_users, owner, sees_all(owner))
        async with self._making:
            await asked(self._current.refresh())
            if self._count(who.user_id) >= self._most:
                raise Problem(
                    409,
                    f"a user may have {self._most} rules (PENSTOCK_RULES_PER_USER), and you have "
                    "as many: delete one",
                )
            record = await self._stored(
                given.plain,
                owner,
                everybody,
                0,
                f"the id {given.id} is taken; choose another",
            )
        return await self._written(record, made(given, record.rule, None), 201)

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
        """Return the rule."""
        rule = await found_rule(request, self._store)
        return answer(self._shown(rule.record), etag=_etag(rule))

    @serves(
        operation(
            method="PUT",
            path="/v1/automations/{rule_id}",
            summary="Replace a rule; `(hidden)` in place of a secret keeps the secret",
            answers={200: _CHANGED},
            parameters=(RULE_ID, _IF_MATCH),
            body=ApiRule,
            example=EXAMPLE,
            sometimes={"act-as": _ACT_AS},
            refusals=(404, 409, 412),
        )
    )
    async def replace(self, request: Request) -> Response:
        """Store the rule of the body in place of the rule of the path."""
        rule = await self._writable(request)
        value = await read_json(request, MAX_BODY_BYTES)
        return await self._change(identity_of(request), rule, value)

    @serves(
        operation(
            method="PATCH",
            path="/v1/automations/{rule_id}",
            summary="Change some fields of a rule, by a merge patch (RFC 7396)",
            answers={200: _CHANGED},
            parameters=(RULE_ID, _IF_MATCH),
            body=OBJECT,
            body_types=("application/json", "application/merge-patch+json"),
            example={"enabled": False},
            sometimes={"act-as": _ACT_AS},
            refusals=(404, 409, 412),
        )
    )
    async def change(self, request: Request) -> Response:
        """Store the rule of the path with the fields of the body."""
        rule = await self._writable(request)
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
            answers={204: Answer("The rule is deleted")},
            parameters=(RULE_ID, _IF_MATCH),
            refusals=(404, 409, 412),
        )
    )
    async def delete(self, request: Request) -> Response:
        """Delete the rule."""
        await ignore_body(request)
        rule = await self._changeable(request)
        try:
            await asked(self._store.delete(rule.id, rule.revision))
        except Conflict as error:
            raise _lost_race(error) from error
        await asked(self._changed())
        return Response(status_code=204)

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
        """Pause the rule, also a rule of the file. A paused rule is not changed."""
        rule = await found_rule(request, self._store)
        body = await optional_body(request, PauseBody)
        by = identity_of(request).user_id
        reason = body.reason or f"paused by {by}"
        await asked(self._store.pause(rule.id, reason, by, rule.record.uid))
        return await self._after(request)

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
        """End the pause, also of a rule of the file. An active rule is not changed."""
        await ignore_body(request)
        rule = await found_rule(request, self._store)
        await asked(self._store.resume(rule.id, rule.record.uid))
        return await self._after(request)

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/secrets",
            summary="Begin to replace a secret: both are valid until the previous one is removed",
            answers={200: _CHANGED},
            parameters=(RULE_ID, _IF_MATCH),
            body=RotateBody,
            body_required=False,
            example={"of": "webhook"},
            sometimes={"act-as": _ACT_AS},
            refusals=(404, 409, 412),
        )
    )
    async def rotate(self, request: Request) -> Response:
        """Begin a rotation: put a new secret before the current secret."""
        rule = await self._writable(request)
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
        changed = self._with_secrets(rule, body.of, name, [secret, *present])
        record = await self._kept(rule, changed)
        return await self._written(record, {} if body.secret else {body.of: secret})

    @serves(
        operation(
            method="DELETE",
            path="/v1/automations/{rule_id}/secrets/previous",
            summary="Remove the previous secret; only the new one is valid then",
            answers={200: json("The rule", RULE)},
            parameters=(
                RULE_ID,
                _IF_MATCH,
                Parameter("of", "`webhook` (default) or `hook`", one_of(("webhook", "hook"))),
            ),
            refusals=(404, 409, 412),
        )
    )
    async def end_rotation(self, request: Request) -> Response:
        """End a rotation: remove the old secret. A single secret is not removed."""
        await ignore_body(request)
        rule = await self._changeable(request)
        of = request.query_params.get("of", "webhook")
        if of not in ("webhook", "hook"):
            raise Problem(422, "of: must be webhook or hook")
        name, present = _secrets(rule.record.rule, of)
        record = rule.record
        if len(present) == PREVIOUS:
            record = await self._kept(rule, self._with_secrets(rule, of, name, present[:1]))
        return await self._written(record, {})

    async def _writable(self, request: Request) -> CompiledRule:
        """Return the rule of the path, if the caller may change its content.

        A rule acts with its owner's rights. So a caller who writes another user's rule acts as that
        user.

        Raises:
            Problem: the problems of `_changeable`; 403 for another user's rule if the caller does
                not have the scope act-as.
        """
        rule = await self._changeable(request)
        who = identity_of(request)
        owner = rule.record.owner.user_id
        if owner != who.user_id and not who.may("act-as"):
            raise Problem(
                403,
                f"the rule acts with the rights of {owner}, so to write it needs the scope act-as "
                "besides administer; without it, you may pause or delete the rule",
            )
        return rule

    async def _changeable(self, request: Request) -> CompiledRule:
        """Return the rule of the path, if the caller may change it over HTTP.

        Raises:
            Problem: 404; 409 for a rule of the file; 412 if the rule has changed since the caller
                read it.
        """
        rule = await found_rule(request, self._store)
        if rule.record.source == "file":
            raise Problem(
                409,
                f"the rule {rule.id} comes from the file that PENSTOCK_RULES names: change it "
                "there and start the service again; over HTTP it can be paused and resumed",
            )
        wanted = request.headers.get("if-match")
        tags = {tag.strip() for tag in (wanted or "*").split(",")}
        if not tags & {"*", _etag(rule)}:
            raise Problem(
                412, f"the rule {rule.id} has changed since you read it: read it again (ETag)"
            )
        return rule

    async def _change(self, who: Identity, rule: CompiledRule, value: Any) -> Response:
        if isinstance(value, dict):
            value = {"id": rule.id, **value}
            if value["id"] != rule.id:
                raise Problem(422, "id: a rule keeps its id; make another rule and delete this one")
        record = rule.record
        given = self._read(value, record.rule)
        # If an administrator changes another user's rule, the rule keeps the rights of its owner.
        owner = _owner(who) if record.owner.user_id == who.user_id else record.owner
        everybody = _all_users(given.all_users, owner, record.all_users)
        stored = record
        wanted = with_secrets(given.plain, record.rule)
        if (wanted, owner, everybody) != (record.rule, record.owner, record.all_users):
            text = f"the rule {rule.id} was changed at the same time: read it again"
            stored = await self._stored(given.plain, owner, everybody, rule.revision, text)
        return await self._written(stored, made(given, stored.rule, record.rule))

    def _read(self, value: Any, earlier: Rule | None) -> ApiRule:
        """Return the rule of a body. Raises Problem 422."""
        try:
            given = read_rule(restored(without_read_only(value), earlier), ApiRule)
            self._refusals.check(given)
        except InvalidRule as error:
            raise invalid_rule(error) from error
        return given

    async def _stored(
        self, rule: Rule, owner: Owner, everybody: bool, expected: int, refusal: str
    ) -> RuleRecord:
        if (reason := missing_right(rule, owner)) is not None:
            raise Problem(403, reason)
        try:
            return await asked(
                self._store.apply(rule, owner, all_users=everybody, expected=expected)
            )
        except Conflict as error:
            raise Problem(409, refusal) from error

    async def _kept(self, rule: CompiledRule, changed: Rule) -> RuleRecord:
        """Store a rule with other secrets; its owner and rights stay the same."""
        text = f"the rule {rule.id} was changed at the same time: try again"
        record = rule.record
        return await self._stored(changed, record.owner, record.all_users, rule.revision, text)

    def _with_secrets(self, rule: CompiledRule, of: str, name: str, secrets: list[str]) -> Rule:
        fields = rule.record.rule.model_dump()
        holder = fields["hook"] if of == "hook" else fields["action"]["webhook"]
        holder[name] = secrets
        try:
            return read_rule(fields, Rule)
        except InvalidRule as error:
            raise _invalid_secret(error.problems[0]["reason"]) from None

    async def _written(
        self, record: RuleRecord, secrets: Mapping[str, str], status: int = 200
    ) -> Response:
        """Respond with a stored record, as soon as the rule matches events."""
        await asked(self._changed())
        rule = await asked(self._store.get(record.rule.id))
        is_same = rule is not None and rule.record.version == record.version
        headers = {"etag": _etag(rule)} if rule is not None and is_same else {}
        body = self._shown(record)
        if secrets:
            body["new_secrets"] = dict(secrets)
            headers["cache-control"] = "no-store"
        return answer(body, status, **headers)

    async def _after(self, request: Request) -> Response:
        await asked(self._changed())
        rule = await found_rule(request, self._store)
        return answer(self._shown(rule.record), etag=_etag(rule))

    def _shown(self, record: RuleRecord) -> dict[str, Any]:
        """Return the rule as clients see it, with the next times of its schedule."""
        if record.rule.schedule is None:
            return shown_rule(record)
        times = record.times
        found = times.upcoming(self._clock.time(), SHOWN_TIMES) if times is not None else []
        return {**shown_rule(record), "next_times": [rfc3339(each) for each in found]}

    def _count(self, user_id: str) -> int:
        return sum(
            each.record.owner.user_id == user_id and each.record.source == "api"
            for each in self._current.all()
        )


def sees_all(owner: Owner) -> bool:
    """Return whether the owner may see the runs of all users."""
    return owner.may("act-as") or owner.may("administer")


def _owner(who: Identity) -> Owner:
    return Owner(user_id=who.user_id, roles=sorted(who.roles), scopes=sorted(who.scopes))


def _all_users(wanted: bool | None, owner: Owner, usual: bool) -> bool:
    everybody = usual if wanted is None else wanted
    if everybody and not sees_all(owner):
        raise Problem(
            403,
            "all_users: the runs of other users need the scope act-as or administer, which the "
            "rule's owner does not have; set all_users to false",
        )
    return everybody


def _secrets(rule: Rule, of: Literal["webhook", "hook"] | str) -> tuple[str, list[str]]:
    """Return the name of the field that holds the secrets of a part, and the secrets.

    Raises:
        Problem: 409 if the rule does not have the part.
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


def _lost_race(error: Conflict) -> Problem:
    return Problem(409, f"{error}: read it again")


def _etag(rule: CompiledRule) -> str:
    return f'"{rule.revision}"'
