"""The ways in which a pause of a real server ends. Each one checks events, tools and audit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.bus.records.approvals import ApprovalRecord, DecideReply
from penstock_approvals.audit.trail import Audit
from support.drive.pipeline import TERMINAL, Event, Pipeline, new_run_id
from support.drive.waiting import eventually
from support.fakes.policies import person, vote
from support.kinds.table import PICK_COLOR, Args, Row, Server, named
from support.real.upstreams import Upstream

# The terms depend on the user whose run asks, so that all rows share one deployment.
POLICY = """
rules:
  - {id: hasty, match: {user: hasty}, outcome: ask, deadline: 1s}
  - {id: quorum, match: {user: quorum}, outcome: ask, need: 2, \
deciders: {roles: [ops], not: [requester]}}
"""
PLAIN, HASTY, QUORUM = person("plain"), person("hasty"), person("quorum", "ops")
ADA, BOB = person("ada", "ops"), person("bob", "ops")
NOTE = "not before Monday"
AT_ONCE = 6  # rows at a time


@dataclass(slots=True)
class Trial:
    """A row's run that has paused."""

    penstock: Pipeline
    row: Row
    server: Upstream
    mark: str
    approval: ApprovalRecord

    async def say(self, who: Any, decision: str = "approve", **more: Any) -> DecideReply:
        """Send a vote with the row's value, if it approves."""
        if decision == "approve":
            more = {"value": named(self.row.value, self.mark), **more}
        request = vote(self.approval, who, decision, **more)
        return await self.penstock.ask(self.approval.approval_id, request)

    async def taken(self, who: Any, decision: str = "approve", **more: Any) -> None:
        reply = await self.say(who, decision, **more)
        assert reply.status == 200, reply.detail

    async def ended(self, type_: str = "lifecycle.completed") -> list[Event]:
        events = await self.penstock.ended(self.approval.run_id, 40)
        assert events[-1].type == type_, events[-1].data
        return events

    async def stopped(self) -> list[Event]:
        """Cancel the run, and wait for its end."""
        await self.penstock.cancel(self.approval.run_id)
        return await self.ended("lifecycle.cancelled")

    def calls(self) -> list[tuple[str, Args]]:
        """Return the calls that the server has run for this run."""
        found = self.server.tool_runs()
        if "{}" in self.row.message:
            mine = [each for each in found if self.mark in json.dumps(each)]
        else:
            session = self.approval.session_id
            mine = [each for each in found if each.get("session") == session]
        return [(each["tool"], each["args"]) for each in mine]

    def ran(self, expected: Iterable[tuple[str, Args]]) -> None:
        """Check that exactly these calls have run, each once."""
        wanted = [(tool, named(args, self.mark)) for tool, args in expected]
        assert sorted(self.calls(), key=repr) == sorted(wanted, key=repr)

    async def audited(self, *expected: str, ran: int = 0) -> list[Mapping[str, Any]]:
        """Check that the run's chain has these records, and then `ran` calls as approved."""
        trail, names = Audit(self.penstock.bus), [*expected, *["ran"] * ran]

        async def complete() -> bool:
            return len(await trail.chain(self.approval.run_id)) >= len(names)

        try:
            await eventually(complete, what=f"the audit has {names}")
        except TimeoutError as error:
            chain = await trail.chain(self.approval.run_id)
            error.add_note(f"it has {[each.record.get('event') for each in chain]}")
            raise
        records = [each.record for each in await trail.chain(self.approval.run_id)]
        assert [each["event"] for each in records] == names
        assert [each["decision"] for each in records if each["event"] == "ran"] == (
            ["as_approved"] * ran
        )
        return records


async def paused(
    penstock: Pipeline, row: Row, server: Upstream, user: str, mark: str | None = None
) -> Trial:
    """Start the row's run for a user, and wait until it asks."""
    mark = mark or new_run_id().replace("-", "")
    fields: dict[str, Any] = {"input": {"tools": [PICK_COLOR]}} if row.tools else {}
    message = row.message.replace("{}", mark)
    run_id = await penstock.start_run(row.agent, message, user_id=user, **fields)
    ends = {"lifecycle.paused", *TERMINAL}
    *_, event = await penstock.events_until(run_id, lambda event: event.type in ends, 40)
    assert event.type == "lifecycle.paused", event.data
    approval = await penstock.approval(event.data["approval_id"])
    assert tuple(item["kind"] for item in approval.items) == row.kinds
    return Trial(penstock, row, server, mark, approval)


def of(events: list[Event], type_: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.type == type_]


def heard(trial: Trial, events: list[Event], note: str) -> None:
    """Check that the agent was told why nothing ran, if the row says that it repeats it."""
    if trial.row.hears:
        assert note in events[-1].data["summary"]


def refused_calls(trial: Trial, events: list[Event], outcome: str) -> None:
    """Check that no call ran, and that each call of the pause has this outcome."""
    trial.ran([])
    asked = {item.get("tool_call_id") for item in trial.approval.items} - {None}
    results = {each["tool_call_id"]: each for each in of(events, "llm.tool_result")}
    found = {results[id_]["outcome"] for id_ in asked if id_ in results}
    assert found <= {outcome}, found
    if trial.row.runs and trial.row.server != "langgraph":
        assert found == {outcome}, results


async def approved(start: Start) -> None:
    trial = await start("plain")
    await trial.taken(PLAIN)
    await trial.ended()
    trial.ran(trial.row.runs)
    await trial.audited("requested", "decided", "sent", ran=trial.row.ran)
    assert (await trial.say(PLAIN)).status == 409


async def rejected(start: Start) -> None:
    trial = await start("plain")
    reply = await trial.say(PLAIN, "reject", note=NOTE)
    assert reply.status == (200 if trial.row.rejects else 422), reply.detail
    if not trial.row.rejects:
        await trial.stopped()
        trial.ran([])
        await trial.audited("requested", "withdrawn")
        return
    events = await trial.ended(trial.row.after_reject)
    heard(trial, events, NOTE)
    refused_calls(trial, events, "rejected")
    records = await trial.audited("requested", "decided", "sent")
    assert records[1]["decision"] == "rejected"


async def expired(start: Start) -> None:
    trial = await start("hasty")
    run_id = trial.approval.run_id
    await trial.penstock.events_until(run_id, "approval.expired", 40)
    assert (await trial.say(HASTY)).status == 409
    if not trial.row.rejects:
        *_, last = await trial.ended("lifecycle.cancelled")
        assert last.data["reason"] == "approval_expired"
        trial.ran([])
        await trial.audited("requested", "expired")
        return
    events = await trial.ended(trial.row.after_reject)
    heard(trial, events, "nobody decided by")
    refused_calls(trial, events, "expired")
    [decided] = of(events, "approval.decided")
    assert (decided["by"], decided["automatic"], decided["outcome"]) == ("policy", True, "rejected")
    await trial.audited("requested", "expired", "decided", "sent")


async def withdrawn(start: Start) -> None:
    trial = await start("plain")
    events = await trial.stopped()
    run_id = trial.approval.run_id

    async def is_withdrawn() -> bool:
        return (await trial.penstock.approval(trial.approval.approval_id)).status == "withdrawn"

    await eventually(is_withdrawn, what=f"the approval of {run_id} is withdrawn")
    assert (await trial.say(PLAIN)).status == 409
    assert not of(events, "approval.decided")
    trial.ran([])
    await trial.audited("requested", "withdrawn")


async def by_two(start: Start) -> None:
    trial = await start("quorum")
    assert (await trial.say(QUORUM)).status == 403
    await trial.taken(ADA)
    assert (await trial.say(ADA)).status == 409
    trial.ran([])
    assert (await trial.penstock.approval(trial.approval.approval_id)).status == "pending"
    await trial.taken(BOB)
    events = await trial.ended()
    assert of(events, "approval.decided")[0]["deciders"] == ["ada", "bob"]
    trial.ran(trial.row.runs)
    await trial.audited("requested", "voted", "decided", "sent", ran=trial.row.ran)


async def edited(start: Start) -> None:
    trial = await start("plain")
    row, args = trial.row, named(trial.row.edited, trial.mark)
    first = trial.approval.items[0]
    assert bool(first.get("editable")) is (row.edited is not None)
    request = vote(trial.approval, PLAIN, value=named(row.value, trial.mark))
    request.items[0].args = args or {"path": "/elsewhere"}
    reply = await trial.penstock.ask(trial.approval.approval_id, request)
    if args is None:
        assert (reply.status, "takes no edited arguments" in reply.detail) == (422, True), reply
        await trial.stopped()
        trial.ran([])
        return
    assert reply.status == 200, reply.detail
    await trial.ended()
    trial.ran([(row.runs[0][0], args), *row.runs[1:]])
    records = await trial.audited("requested", "decided", "sent", ran=row.ran)
    assert records[1]["digest"] != records[0]["digest"]


Start = Callable[[str], Awaitable[Trial]]
WAYS: dict[str, Callable[[Start], Awaitable[None]]] = {
    "approved": approved,
    "rejected": rejected,
    "expired": expired,
    "withdrawn": withdrawn,
    "by two people": by_two,
    "edited": edited,
}


async def every(
    penstock: Pipeline, rows: Iterable[Row], servers: dict[Server, Upstream], way: str
) -> None:
    """Try one way with all rows, some at a time.

    Raises:
        ExceptionGroup: what failed; each error has a note with its row.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def one(row: Row) -> Exception | None:
        async with room:
            try:
                await WAYS[way](partial(paused, penstock, row, servers[row.server]))
            except Exception as error:
                error.add_note(f"row: {row.id}")
                return error
        return None

    failed = [error for error in await asyncio.gather(*map(one, rows)) if error]
    if failed:
        raise ExceptionGroup(f"{way}: {[error.__notes__[-1] for error in failed]}", failed)
