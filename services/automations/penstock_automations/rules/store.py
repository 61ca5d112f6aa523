"""Reads and writes the rules in KV `rules`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from pydantic import ValidationError

from penstock.bus import Bus, BusError, Stored
from penstock.bus.read import direct
from penstock.bus.read.reader import Reader
from penstock.bus.records.base import Record
from penstock.bus.state.kv import MARKER_S, is_marker
from penstock.bus.streams import events_of
from penstock.web.auth.identity import ANONYMOUS_USER
from penstock_automations.rules import scheduled
from penstock_automations.rules.hidden import CannotOpen, RuleKeys, with_secrets
from penstock_automations.rules.index import RuleIndex
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, Owner, Pause, RuleRecord, compile_rule
from penstock_automations.rules.scheduled import ScheduledWorkflows

log = logging.getLogger(__name__)

LAGS_S = 0.05
_STREAM, _PREFIX = "KV_rules", "$KV.rules."
# the bucket that remembers deleted rules, so that they expire with the records of their deliveries
_HISTORY: Final = "deliveries"
_ANONYMOUS: Final = (
    "it was made while callers were not authenticated, and now they are: delete it, and make it "
    "with a token"
)


class VersionConflict(Exception):
    """Another caller changed the rule at the same time."""


class RuleStore:
    """Reads and changes the rules in KV. A change is a compare-and-set and makes a new version."""

    def __init__(self, bus: Bus, keys: RuleKeys | None = None) -> None:
        self._bus = bus
        self._keys = keys or RuleKeys()
        self._bucket = bus.bucket("rules")

    async def all(self) -> list[CompiledRule]:
        """Return all rules; log and leave out an unreadable record. Raises BusError."""
        entries = await self._bucket.entries()
        found = [parse_rule(self._keys, each.key, each.value, each.revision) for each in entries]
        return [each for each in found if each is not None]

    async def get(self, rule_id: str) -> CompiledRule | None:
        entry = await self._bucket.get(rule_id)
        if entry is None:
            return None
        return parse_rule(self._keys, rule_id, entry.value, entry.revision)

    async def encrypt(self) -> None:
        """Write the rules again whose secrets are not encrypted with the first key."""
        for entry in await self._bucket.entries():
            rule = parse_rule(self._keys, entry.key, entry.value, entry.revision)
            if rule is None or self._keys.is_current(rule.record, entry.value):
                continue
            with contextlib.suppress(VersionConflict):  # the other writer has the same key
                await self.put(rule.record, entry.revision)
                log.info("rule %s: its secrets are encrypted with the first key", rule.id)

    async def put(self, record: RuleRecord, revision: int) -> RuleRecord:
        """Store a record in place of this revision; 0 for a new rule. Raises VersionConflict."""
        if await self._bucket.update(record.rule.id, self._keys.dump(record), revision) is None:
            raise VersionConflict(f"the rule {record.rule.id} was changed at the same time")
        return record

    async def apply(
        self,
        rule: Rule,
        owner: Owner,
        *,
        all_users: bool = False,
        source: str = "api",
        expected: int | None = None,
        begins: dict[str, int] | None = None,
    ) -> RuleRecord:
        """Store a rule: a new one, or a new version of the rule with its id.

        A rule without a signing secret keeps its earlier secrets, or gets a new secret. A rule that
        did not match events before matches only events that are stored after this call. A new or
        changed schedule fires only at times after this call. If the owner changes, the rule counts
        as a new rule. The new rule does not keep the earlier secrets, and waiting deliveries of the
        earlier rule are not made. A paused rule stays paused when it is changed over HTTP.
        `expected` is the revision that the rule must have; 0 if there must be no rule with this id.
        A new rule with `begins` also matches events after these sequences of streams.

        Raises:
            VersionConflict: the rule has another revision.
            BusError: nothing was stored, or it is unknown whether the rule was stored.
        """
        earlier = await self.get(rule.id)
        if expected is not None and expected != (earlier.revision if earlier else 0):
            raise VersionConflict(f"the rule {rule.id} was changed at the same time")
        # The earlier rule if it has the same owner. Else None, because the rule counts as new.
        same = earlier
        if same is not None and not same.record.has_rights_of(owner, all_users=all_users):
            await remember_deleted(self._bus, same.record)
            same = None
        now = self._bus.clock.stamp()
        record = RuleRecord.model_validate(
            {
                "rule": with_secrets(rule, same.record.rule if same else None),
                "uid": same.record.uid if same else secrets.token_hex(8),
                "owner": owner,
                "all_users": all_users,
                "version": earlier.record.version + 1 if earlier else 1,
                "source": source,
                "begins": begins if begins and not same else await self._begins(rule, same),
                "since": self._since(rule, same),
                "paused": same.record.paused if same and source == "api" else None,
                "created_at": earlier.record.created_at if earlier else now,
                "updated_at": now,
            }
        )
        return await self.put(record, earlier.revision if earlier else 0)

    async def pause(self, rule_id: str, reason: str, by: str, uid: str | None = None) -> bool:
        """Pause a rule; return False if there is no such rule or it is paused already. With `uid`,
        a later rule with the same id is not paused. Raises BusError."""

        async def changes() -> dict[str, object]:
            now = self._bus.clock.stamp()
            return {"paused": Pause(reason=reason, by=by, at=now), "updated_at": now}

        return await self._change(rule_id, uid, changes, was_paused=False)

    async def resume(self, rule_id: str, uid: str | None = None) -> bool:
        """End the pause of a rule; return False if there is no such rule or it is not paused.

        The rule does not match events that were stored during the pause, and its schedule does not
        make up for times in the pause. Deliveries that were waiting are made. Raises BusError.
        """

        async def changes() -> dict[str, object]:
            return {
                "paused": None,
                "begins": await self.ends(),
                "since": self._bus.clock.time(),
                "updated_at": self._bus.clock.stamp(),
            }

        return await self._change(rule_id, uid, changes, was_paused=True)

    async def _change(
        self,
        rule_id: str,
        uid: str | None,
        changes: Callable[[], Awaitable[dict[str, object]]],
        *,
        was_paused: bool,
    ) -> bool:
        while (found := await self.get(rule_id)) is not None:
            record = found.record
            if (record.paused is not None) != was_paused or uid not in (None, record.uid):
                break
            with contextlib.suppress(VersionConflict):
                await self.put(record.model_copy(update=await changes()), found.revision)
                return True
        return False

    async def delete(
        self, rule_id: str, expected: int | None = None, uid: str | None = None
    ) -> bool:
        """Delete a rule; return False if there is no such rule. With `uid`, a later rule with the
        same id is not deleted. Raises VersionConflict. Its deliveries that wait fail. Its owner can
        read its deliveries until they expire."""
        while (entry := await self._bucket.get(rule_id)) is not None:
            if expected is not None and entry.revision != expected:
                raise VersionConflict(f"the rule {rule_id} was changed at the same time")
            rule = parse_rule(self._keys, rule_id, entry.value, entry.revision)
            if uid is not None and rule is not None and rule.record.uid != uid:
                return False
            if rule is not None:
                await remember_deleted(self._bus, rule.record)
            if await self._bucket.delete(rule_id, entry.revision):
                return True
        return False

    async def _begins(self, rule: Rule, earlier: CompiledRule | None) -> dict[str, int]:
        if earlier is not None and earlier.matches_now and rule.types <= earlier.types:
            # the changed rule continues where the earlier version stopped, so it misses no event
            return earlier.record.begins
        return await self.ends()

    def _since(self, rule: Rule, earlier: CompiledRule | None) -> float:
        if earlier is not None and earlier.matches_now and rule.schedule is not None:
            before = earlier.record.rule.schedule
            if before is not None and before.times == rule.schedule.times:
                # the schedule is unchanged, so it continues and misses no time
                return earlier.record.since
        return self._bus.clock.time()

    async def ends(self) -> dict[str, int]:
        """Return the last sequence of each stream of events. Raises BusError."""
        ends = {}
        for shard in range(self._bus.shards.made):
            stream = events_of(shard)
            ends[stream] = int((await self._bus.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])
        return ends


class CurrentRules:
    """Keeps the current rules in memory, and follows the changes of KV `rules`. The schedules of
    workflows are rules, too."""

    def __init__(
        self, bus: Bus, keys: RuleKeys | None = None, *, callers_known: bool = False
    ) -> None:
        self._bus = bus
        self._keys = keys or RuleKeys()
        self._rules: dict[str, CompiledRule] = {}
        self._scheduled = ScheduledWorkflows(bus, callers_known=callers_known)
        self.index = RuleIndex([])
        self._revision = 0  # the revision of the last write that was read
        self._known_s = 0.0  # when the rules in memory were last known to be current
        self._is_stale = True  # whether all rules must be read
        self._reading = asyncio.Lock()
        self.on_change: Callable[[], None] = lambda: None
        bus.on_reconnect(self._on_reconnect)

    async def refresh(self) -> None:
        """Read what was written since the last read. Raises BusError."""
        if not self._is_stale and not await self._is_behind(self._revision):
            self._known_s = time.monotonic()
            return
        # two reads at once could end in the wrong order and restore old rules
        async with self._reading:
            # Read only the changes if the last read is recent. After a longer time, the markers of
            # deleted rules may have expired, and deleted rules would stay in memory. So all rules
            # are read then.
            is_recent = time.monotonic() - self._known_s < MARKER_S / 2
            rules, revision = dict(self._rules), self._revision
            if self._is_stale or not is_recent:
                rules, revision = await self._read_all()
            while await self._is_behind(revision):
                revision = await self._take_changes(rules, revision)
            if revision == self._revision:
                return
            self._rules, self._revision = rules, revision
            self._known_s = time.monotonic()
            self.index = RuleIndex(rules.values())
        self.on_change()

    async def _is_behind(self, revision: int) -> bool:
        last = await self._bus.tail(_STREAM, f"{_PREFIX}*")
        return last is not None and last.sequence > revision

    async def _read_all(self) -> tuple[dict[str, CompiledRule], int]:
        self._is_stale = False
        try:
            found = await RuleStore(self._bus, self._keys).all()
        except BusError:
            self._is_stale = True
            raise
        return {rule.id: rule for rule in found}, max((each.revision for each in found), default=0)

    async def _take_changes(self, rules: dict[str, CompiledRule], revision: int) -> int:
        """Apply the changes after `revision` to `rules`; return the revision of the last change."""
        seen = revision
        async for stored in direct.replay(self._bus, _STREAM, ">", revision + 1):
            seen = stored.sequence
            rule_id = stored.subject.removeprefix(_PREFIX)
            rules.pop(rule_id, None)
            rule = None
            if not is_marker(stored):
                rule = parse_rule(self._keys, rule_id, stored.payload, stored.sequence)
            if rule is not None:
                rules[rule_id] = rule
        if seen == revision:
            await asyncio.sleep(LAGS_S)  # the answer came from a replica that lags behind
        return seen

    def _on_reconnect(self) -> None:
        # NATS may have been restored to an older state. Later writes may then have got revisions
        # that this process has read already. So all rules are read again.
        self._is_stale = True

    async def follow(self) -> None:
        await Reader(self._bus, _STREAM, f"{_PREFIX}*", 1, self._on_record).run()

    async def refresh_all(self) -> None:
        """Read also which schedules workflows have. Raises BusError."""
        if await self._scheduled.refresh():
            self.on_change()
        await self.refresh()

    async def follow_schedules(self) -> None:
        async def changed(stored: Stored) -> None:
            await self.refresh_all()

        await Reader(self._bus, scheduled.STREAM, scheduled.POINTERS, 1, changed).run()

    def get(self, rule_id: str) -> CompiledRule | None:
        return self._rules.get(rule_id) or self._scheduled.rules.get(rule_id)

    def stored(self) -> Iterable[CompiledRule]:
        """Return the rules that can be shown and changed, without the schedules of workflows."""
        return self._rules.values()

    def all(self) -> Iterable[CompiledRule]:
        return [*self._rules.values(), *self._scheduled.rules.values()]

    def types(self) -> frozenset[str]:
        wanted = (rule.types for rule in self._rules.values() if rule.matches_now)
        return frozenset[str]().union(*wanted)

    async def _on_record(self, stored: Stored) -> None:
        if stored.sequence > self._revision:
            await self.refresh()


def parse_rule(keys: RuleKeys, rule_id: str, value: bytes, revision: int) -> CompiledRule | None:
    """Return the rule of a record. If the record cannot be read, log this and return None."""
    reason: object
    try:
        return compile_rule(keys.parse(value), revision)
    except ValidationError as error:
        reason = [".".join(map(str, each["loc"])) for each in error.errors(include_input=False)]
    except CannotOpen as error:
        reason = error
    log.error("the rule %s cannot be read, so it does nothing: %s", rule_id, reason)
    return None


async def pause_rules_without_owner(store: RuleStore) -> None:
    """Pause the rules of `anonymous`, which see the runs of all users. Otherwise somebody who made
    one before authentication was configured would still get the events of all users."""
    for rule in await store.all():
        record = rule.record
        if record.owner.user_id != ANONYMOUS_USER or record.source != "api":
            continue
        if await store.pause(rule.id, _ANONYMOUS, "penstock", record.uid):
            log.warning("rule %s is paused: %s", rule.id, _ANONYMOUS)


class DeletedRule(Record):
    """KV `deliveries`, key `deleted.<rule>.<uid>`."""

    rule: str
    uid: str
    owner: str


async def remember_deleted(bus: Bus, record: RuleRecord) -> None:
    """Remember a rule that is about to be deleted, or to get another owner."""
    rule = DeletedRule(rule=record.rule.id, uid=record.uid, owner=record.owner.user_id)
    await bus.bucket(_HISTORY).put(f"deleted.{rule.rule}.{rule.uid}", rule.dump())


async def deleted_rules(bus: Bus, rule_id: str = "*") -> list[DeletedRule]:
    """Return the deleted rules that had this id; without an id, all deleted rules."""
    entries = await bus.bucket(_HISTORY).entries(f"deleted.{rule_id}.*")
    return [DeletedRule.model_validate_json(each.value) for each in entries]
