"""Asks for the erasure of a run's content, and says what has become of each place where it was."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uuid_utils

from penstock.bus import Bus, Message, streams, subjects
from penstock.bus.admin.subscribers import grant_of
from penstock.bus.records.erasures import EraseCommand, Erasure
from penstock.bus.records.runs import RunRecord
from penstock.web.auth import Identity, acting_user
from penstock.web.problems import Problem
from penstock_edge.sources.run_list import RunList
from penstock_edge.views.erased import ERASED

WAIT_S: Final = 3.0
LOOK_AGAIN_S: Final = 0.02
# The services whose durable consumers of EVENTS are Penstock's own; others are subscribers'.
_SERVICES: Final = frozenset({"approvals", "automations", "normalizer", "workflows"})

Place = dict[str, Any]


def new_erasure_id() -> str:
    return str(uuid_utils.uuid7())


class Erasing:
    """Asks the normalizer for erasures."""

    def __init__(self, bus: Bus, runs: RunList) -> None:
        self._bus = bus
        self._runs = runs

    async def ask(
        self, who: Identity, record: RunRecord, erasure_id: str, reason: str | None
    ) -> None:
        """Ask for the erasure of the content of a run and of the runs of its steps. Nothing is done
        if it is erased already. Raises Problem 403 for the run of a user for whom the caller may
        not act, 409 for a run that cannot be erased."""
        acting_user(who, record.user_id)
        if record.erasure is not None:
            return
        if record.ancestors:
            raise Problem(
                409,
                f"run {record.run_id} is of a step of the workflow's run {record.ancestors[0]}: "
                "erase that run, and its steps' runs are erased with it",
            )
        runs = [*await self._steps_of(record), record]
        for each in runs:
            if each.erasure is None and (refusal := each.not_erasable) is not None:
                raise Problem(409, refusal)
        command = EraseCommand(
            erasure_id=erasure_id,
            runs=[each.run_id for each in runs],
            by=who.user_id,
            at=self._bus.clock.stamp(),
            reason=reason,
        )
        subject = subjects.command(subjects.NORMALIZER, "erase", record.run_id)
        await self._bus.publisher.publish(Message(subject, command.dump(), {}))

    async def withheld(self, run_id: str, until: float | None = None) -> RunRecord | None:
        """Return the run's record when its content is withheld; None if it is not, `WAIT_S` after
        this call or at the time `until` of the loop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S if until is None else until
        while True:
            subject = subjects.event(ERASED, run_id)
            stored = await self._bus.tail(streams.events_for(run_id), subject)
            record = await self._bus.bucket("runs").load(run_id, RunRecord)
            if record is None:
                raise Problem(404, f"there is no run {run_id}")
            if record.erasure is None and record.not_erasable is not None:
                raise Problem(409, record.not_erasable)
            if stored is not None or (record.erasure and record.erasure.erased_at):
                return record
            if loop.time() >= until:
                return None
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _steps_of(self, record: RunRecord) -> list[RunRecord]:
        if record.target != "workflows":
            return []
        await self._runs.index.caught_up()
        below = await self._runs.records(self._runs.rows.below(record.run_id))
        return [each for each in below.values() if record.run_id in (each.ancestors or ())]


async def places_of(bus: Bus, record: RunRecord, erasure: Erasure) -> list[Place]:
    """Return each place where content of the run was, and what has become of it there."""
    run_id = record.run_id
    is_done = erasure.erased_at is not None
    found: list[Place] = []
    for stream, patterns in (
        (streams.events_for(run_id), (subjects.events_of_run(run_id),)),
        (streams.raw_for(run_id), (subjects.raw_of_run(run_id),)),
        (streams.JOURNAL, (subjects.journal(run_id), subjects.journal_value(run_id, "*"))),
        (streams.DEADLETTERS, (subjects.deadletter("*", run_id),)),
    ):
        place: Place = {"place": stream, "state": "erased" if is_done else "erasing"}
        if not is_done:
            place["messages"] = sum([await _count(bus, stream, each) for each in patterns])
        found.append(place)
    found += [
        _place("objects", "erased" if is_done else "erasing", "large payloads of these messages"),
        *(_place(f"KV {name}", "overwritten", _OVERWRITTEN) for name in _BUCKETS),
        _place("COMMANDS", "overwritten", _OVERWRITTEN),
        _place("costs", "kept", "sums, without content"),
        _place("audit", "kept", _DETAILS if erasure.audit_has_details else _NO_DETAILS),
        _place("logs, traces", "kept", "names, ids and times; at log level DEBUG also error texts"),
        _place("agent server", "out_of_reach", f"what agent {record.agent} has stored itself"),
        _place("backups", "out_of_reach", f"copies from before {erasure.at}"),
        _place("subscribers", "out_of_reach", "who has followed `live.` subjects meanwhile"),
    ]
    keys, _ = await bus.content.stored_keys(run_id)
    is_sealed = keys.key is not None or bool(keys.destroyed)
    for consumer in await bus.jetstream.consumers(streams.events_for(run_id)):
        name = consumer["name"]
        if consumer["config"].get("durable_name") and name.partition("-")[0] not in _SERVICES:
            # What is in clear needs no grant.
            grant = f" (grant {grant_of(consumer['config']).name})" if is_sealed else ""
            found.append(_place("subscriber", "out_of_reach", f"{name}{grant}"))
    for receiver in erasure.receivers:
        sent = f"{receiver.url} (rule {receiver.automation}, at {receiver.at})"
        found.append(_place("webhook", "out_of_reach", sent))
    return found


_BUCKETS: Final = ("runs", "claims", "approvals", "deliveries", "pauses", "threads")
_OVERWRITTEN: Final = (
    "no longer read; bytes of earlier versions stay in NATS's files until NATS writes the file anew"
)
_NO_DETAILS: Final = "who, when and digests, without content"
_DETAILS: Final = "also arguments and notes, because PENSTOCK_AUDIT_DETAILS is set"


def _place(place: str, state: str, detail: str) -> Place:
    return {"place": place, "state": state, "detail": detail}


async def _count(bus: Bus, stream: str, pattern: str) -> int:
    info = await bus.api(f"STREAM.INFO.{stream}", {"subjects_filter": pattern})
    return sum((info["state"].get("subjects") or {}).values())
