"""Reads and writes the rules that a request names, with the caller's rights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.bus.connection.clock import Clock
from penstock.documents.cron import rfc3339
from penstock.web.answers import json_answer
from penstock.web.auth import Identity, identity_of
from penstock.web.auth.limits import limited
from penstock.web.problems import Problem
from penstock_automations.api.bodies import ApiRule, shown_rule, without_read_only
from penstock_automations.api.common import RULE_NAME, found_rule
from penstock_automations.rules.check import InvalidRule, missing_right, read_rule
from penstock_automations.rules.draft import Draft
from penstock_automations.rules.hidden import with_restored_secrets
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord, compile_rule
from penstock_automations.rules.store import CurrentRules, RuleStore, VersionConflict

SHOWN_TIMES: Final = 5  # how many next times of a schedule a client sees


class StoredRules:
    """The rules that requests read and write.

    `new_draft` returns a draft that is checked for this installation. `changed` is awaited after
    each write, and returns when the stored rules match every new event. `most` is the number of
    rules that one user may have, and `tenant_limits` the setting.
    """

    def __init__(
        self,
        store: RuleStore,
        current: CurrentRules,
        new_draft: Callable[[], Draft],
        changed: Callable[[], Awaitable[None]],
        clock: Clock,
        *,
        most: int,
        tenant_limits: int,
    ) -> None:
        self.store = store
        self.current = current
        self._new_draft = new_draft
        self.changed = changed
        self._clock = clock
        self._most = most
        self._tenant_limits = tenant_limits
        self._making = asyncio.Lock()

    async def writable(self, request: Request) -> CompiledRule:
        """Return the rule that the path names, if the caller may change its content.

        A rule acts with its owner's rights. So a caller who writes another user's rule acts as that
        user. Raises Problem as `changeable`; then 403 for another user's rule without act-as.
        """
        rule = await self.changeable(request)
        who = identity_of(request)
        owner = rule.record.owner.user_id
        if owner != who.user_id and not who.has_scope("act-as"):
            raise Problem(
                403,
                f"the rule acts with the rights of {owner}, so to write it needs the scope act-as "
                "besides administer; without it, you may pause or delete the rule",
            )
        return rule

    async def changeable(self, request: Request) -> CompiledRule:
        """Return the rule that the path names, if the caller may change it over HTTP.

        Raises Problem, in this order: 404 if there is no such rule; 409 if it comes from the file
        of rules; 412 if it has changed since the caller read it.
        """
        rule = await found_rule(request, self.store)
        if rule.record.source == "file":
            raise Problem(
                409,
                f"the rule {rule.id} comes from the file that PENSTOCK_RULES names: change it "
                "there and start the service again; over HTTP it can be paused and resumed",
            )
        wanted = request.headers.get("if-match")
        tags = {tag.strip() for tag in (wanted or "*").split(",")}
        if not tags & {"*", etag_of(rule)}:
            raise Problem(
                412, f"the rule {rule.id} has changed since you read it: read it again (ETag)"
            )
        return rule

    def read(self, value: Any, earlier: Rule | None) -> tuple[ApiRule, list[dict[str, Any]]]:
        """Return the rule in a request's body, and the warnings. Raises Problem 422 with all
        mistakes if the body has no valid rule."""
        restored, problems = with_restored_secrets(without_read_only(value), earlier)
        draft = self._new_draft()
        try:
            rule = read_rule(restored, ApiRule, draft)
            if problems:
                raise InvalidRule(problems)
        except InvalidRule as error:
            # A secret that is missing is no secret either: this is said once.
            known = {each["field"] for each in problems}
            further = [each for each in error.problems if each["field"] not in known]
            raise _refused(InvalidRule([*problems, *further])) from error
        return rule, list(map(_shown, draft.warnings))

    async def compiled_draft(
        self, value: Any, who: Identity
    ) -> tuple[CompiledRule, list[dict[str, Any]]]:
        """Return the rule that a caller could store, without storing it, and the warnings. Raises
        Problem as a request to store the rule does."""
        rule_id = value.get("id")
        is_id = isinstance(rule_id, str) and RULE_NAME.fullmatch(rule_id)
        stored = await self.store.get(rule_id) if is_id else None
        is_mine = stored is not None and who.manages(stored.record.owner.user_id)
        mine = stored if is_mine else None
        asked, warnings = self.read(value, mine.record.rule if mine is not None else None)
        owner = owner_of(who)
        everybody = matches_all_users(asked.all_users, owner, may_see_all_runs(owner))
        if (reason := missing_right(asked.action, owner)) is not None:
            raise Problem(403, reason)
        record = RuleRecord(
            rule=asked.plain,
            uid="draft",
            owner=owner,
            all_users=everybody,
            created_at="",
            updated_at="",
        )
        return compile_rule(record, 0), warnings

    async def make(
        self,
        rule: Rule,
        owner: Owner,
        *,
        all_users: bool,
        expected: int | None,
        refusal: str,
        begins: dict[str, int] | None = None,
    ) -> RuleRecord:
        """Store a rule as `apply`. Problem 409: the owner would have too many."""
        async with self._making:
            await self.current.refresh()
            others = [each.record for each in self.current.stored() if each.id != rule.id]
            made = [each.owner.user.levels for each in others if each.source == "api"]
            for level, name, times in limited(owner.user, self._tenant_limits):
                if sum(level in each for each in made) >= (most := self._most * times):
                    text = (
                        f"{name} may have {most} rules (PENSTOCK_RULES_PER_USER), and has as many"
                    )
                    raise Problem(409, f"{text}: delete one")
            return await self.apply(
                rule,
                owner,
                all_users=all_users,
                expected=expected,
                refusal=refusal,
                begins=begins,
            )

    async def apply(
        self,
        rule: Rule,
        owner: Owner,
        *,
        all_users: bool,
        expected: int | None,
        refusal: str,
        begins: dict[str, int] | None = None,
    ) -> RuleRecord:
        """Store a rule if it has the revision `expected`; 0 means that there is no such rule.
        Raises Problem 403 if the owner lacks a right; 409 `refusal` for another revision."""
        if (reason := missing_right(rule.action, owner)) is not None:
            raise Problem(403, reason)
        try:
            return await self.store.apply(
                rule, owner, all_users=all_users, expected=expected, begins=begins
            )
        except VersionConflict as error:
            raise Problem(409, refusal) from error

    async def respond_with(
        self,
        record: RuleRecord,
        secrets: Mapping[str, str],
        status: int = 200,
        *,
        warnings: Sequence[Mapping[str, Any]] = (),
    ) -> Response:
        """Respond with a stored record, as soon as the rule matches events."""
        await self.changed()
        rule = await self.store.get(record.rule.id)
        is_same = rule is not None and rule.record.version == record.version
        headers = {"etag": etag_of(rule)} if rule is not None and is_same else {}
        body = self.shown(record)
        if warnings:
            body["warnings"] = list(warnings)
        if secrets:
            body["new_secrets"] = dict(secrets)
            headers["cache-control"] = "no-store"
        return json_answer(body, status, **headers)

    async def respond_with_current(self, request: Request) -> Response:
        """Respond with the rule that the path names, as soon as its last change is in effect."""
        await self.changed()
        rule = await found_rule(request, self.store)
        return json_answer(self.shown(rule.record), etag=etag_of(rule))

    def shown(self, record: RuleRecord) -> dict[str, Any]:
        if record.rule.schedule is None:
            return shown_rule(record)
        times = record.times
        found = times.upcoming(self._clock.time(), SHOWN_TIMES) if times is not None else []
        return {**shown_rule(record), "next_times": [rfc3339(each) for each in found]}


def _refused(error: InvalidRule) -> Problem:
    return Problem(422, str(error), errors=list(map(_shown, error.problems)))


def _shown(problem: dict[str, Any]) -> dict[str, Any]:
    place = {name: problem[name] for name in ("line", "column") if name in problem}
    return {"field": problem["field"] or "body", "message": problem["reason"]} | place


def may_see_all_runs(owner: Owner) -> bool:
    return owner.has_scope("act-as") or owner.has_scope("administer")


def owner_of(who: Identity) -> Owner:
    """Return the caller as the owner of a rule, with the caller's present rights."""
    return Owner(
        user_id=who.user_id,
        tenant=who.tenant,
        roles=sorted(who.roles),
        scopes=sorted(who.scopes),
    )


def matches_all_users(wanted: bool | None, owner: Owner, usual: bool) -> bool:
    """Return whether a rule matches the runs of all users: `wanted`, or else `usual`. Raises
    Problem 403 if the rule is to match these runs, but its owner may not see them."""
    everybody = usual if wanted is None else wanted
    if everybody and not may_see_all_runs(owner):
        raise Problem(
            403,
            "all_users: the runs of other users need the scope act-as or administer, which the "
            "rule's owner does not have; set all_users to false",
        )
    return everybody


def etag_of(rule: CompiledRule) -> str:
    return f'"{rule.revision}"'
