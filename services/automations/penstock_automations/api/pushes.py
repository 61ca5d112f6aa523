"""Answers the edge's core requests `push.<run>` about the pushes of a run (decision 0325)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from pydantic import ValidationError

from penstock.bus import Bus, BusError, Msg, Stored, subjects
from penstock.bus.records.webhooks import Push, PushReply, PushRequest
from penstock.bus.streams import events_for
from penstock.turns import TenantUser
from penstock.web.problems import Problem, invalid
from penstock_automations.api.stored_rules import StoredRules
from penstock_automations.rules.pushes import new_rule_id, prefix, push_of, rule_of
from penstock_automations.rules.records import CompiledRule, Owner

log = logging.getLogger(__name__)


class Pushes:
    """The pushes of runs. `match_again` has an owner's events, by stream and sequences, matched
    once more, also if this process is killed."""

    def __init__(
        self,
        bus: Bus,
        rules: StoredRules,
        match_again: Callable[[TenantUser, str, Sequence[int]], Awaitable[None]],
    ) -> None:
        self._bus = bus
        self._rules = rules
        self._match_again = match_again

    async def on_request(self, msg: Msg) -> None:
        """If the bus fails, send no answer. The edge's request then times out, and is repeated."""
        run_id = msg.subject.partition(".")[2]
        try:
            request = PushRequest.model_validate_json(msg.data)
            reply = await self._reply(run_id, request)
        except ValidationError as error:
            problem = invalid(error)
            reply = PushReply(status=problem.status, detail=problem.detail)
        except Problem as problem:
            reply = PushReply(status=problem.status, detail=problem.detail)
        except BusError as error:
            log.warning("run %s: %s: no answer: %s", run_id, msg.subject, error)
            return
        await self._bus.client.publish(msg.reply, reply.dump())

    async def _reply(self, run_id: str, request: PushRequest) -> PushReply:
        owner = Owner(**request.model_dump(include={"user_id", "tenant", "roles", "scopes"}))
        await self._rules.current.refresh()
        found = self._rules_of(run_id, owner)
        if request.add is not None:
            same = [each for each in found if each.record.rule.name == request.add.id]
            await self._add(run_id, owner, request.add, same)
        if request.remove is not None:
            same = [each for each in found if each.record.rule.name == request.remove]
            if same:
                await self._delete(same)
                await self._rules.changed()
        await self._rules.current.refresh()
        found = self._rules_of(run_id, owner)
        return PushReply(status=200, pushes=[push_of(each.record.rule) for each in found])

    async def _delete(self, rules: Sequence[CompiledRule]) -> None:
        for each in rules:
            await self._rules.store.delete(each.id, uid=each.record.uid)

    def _rules_of(self, run_id: str, owner: Owner) -> list[CompiledRule]:
        begin, user_id = prefix(run_id), owner.user_id
        rules = (each for each in self._rules.current.all() if each.id.startswith(begin))
        own = (each for each in rules if each.record.owner.user_id == user_id)
        # The owner may write these rules over HTTP, too, and may have made them something else.
        pushes = [each for each in own if each.record.rule.payload == "a2a"]
        pushes = [each for each in pushes if each.record.rule.action.webhook is not None]
        return sorted(pushes, key=lambda each: each.record.created_at)

    async def _add(
        self, run_id: str, owner: Owner, push: Push, same: Sequence[CompiledRule]
    ) -> None:
        """Tell of the run's present state, and of all that follows. `same` are the rules of the
        pushes with this id: a push to another URL replaces them.

        The rule begins before the newest event of the lifecycle. When the rule is in force, the
        event that is then the newest is matched again: with it, an ordered rule matches all events
        that came meanwhile. The event with which the rule begins is matched, too: if a process was
        killed before it published the first job of the run's queue, only this event has it done.
        """
        kept = [each for each in same if push_of(each.record.rule).url == push.url][:1]
        rule_id = kept[0].id if kept else new_rule_id(run_id)
        rule, _ = self._rules.read(rule_of(rule_id, run_id, push), None)
        await self._delete([each for each in same if each not in kept])
        stream = events_for(run_id)
        begins = await self._rules.store.ends()  # before the look, so that no event lies between
        if (newest := await self._newest(run_id)) is not None:
            begins[stream] = newest.sequence - 1
        record = await self._rules.make(
            rule.plain,
            owner,
            all_users=False,
            expected=None,
            refusal="the push was changed at the same time: try again",
            begins=begins,
        )
        await self._rules.changed()
        if (newest := await self._newest(run_id)) is not None:
            first = record.begins.get(stream, 0) + 1
            await self._match_again(owner.user, stream, sorted({first, newest.sequence}))

    async def _newest(self, run_id: str) -> Stored | None:
        return await self._bus.tail(events_for(run_id), subjects.event("lifecycle.*", run_id))
