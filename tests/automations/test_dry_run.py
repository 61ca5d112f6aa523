"""A dry run says which past events a rule would have matched, and sends nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from penstock.bus import Bus, Message, messages, subjects
from penstock.bus.records.runs import RunRecord
from penstock_automations.matching.dry_run import Asked, dry_run
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord, compile_rule
from support.drive.automations import rule
from support.drive.bus import connected, new_run_id
from support.real.nats import NatsServer


def compiled(*types: str, where: str | None = None, **fields: Any) -> CompiledRule:
    made = rule("dry", "https://hook.example/x", *types, where=where)
    record = RuleRecord(
        rule=made,
        uid="1",
        created_at="",
        updated_at="",
        **{"owner": Owner(user_id="u1"), **fields},
    )
    return compile_rule(record, 1)


async def publish(bus: Bus, user_id: str, *tools: str) -> str:
    """A run with these tool calls, and its start."""
    run_id = new_run_id()
    record = RunRecord(
        run_id=run_id, agent="a", session_id="s", user_id=user_id, created_at="", updated_at=""
    )
    await bus.bucket("runs").put(run_id, record.dump())
    said: list[tuple[str, dict[str, Any]]] = [("lifecycle.started", {})]
    said += [("llm.tool_call", {"tool": tool, "n": n}) for n, tool in enumerate(tools)]
    for sequence, (type_, data) in enumerate(said, 1):
        category, _, action = type_.partition(".")
        body = {
            "run_id": run_id,
            "timestamp": messages.now(),
            "sequence": sequence,
            "event": {"category": category, "action": action},
            "data": data,
        }
        subject = subjects.event_input(type_, run_id)
        await bus.publisher.publish(Message(subject, orjson.dumps(body), {}))
    return run_id


async def test_past_events_are_tried_for_the_owner_in_order(fresh_nats: NatsServer) -> None:
    begin = datetime.now(UTC)
    async with connected(fresh_nats.url) as bus:
        mine = await publish(bus, "u1", "read", "delete", "read")
        await publish(bus, "u2", "delete")
        wanted = compiled("llm.tool_call", "lifecycle.started", where='event.data.tool == "delete"')
        found = await dry_run(bus, wanted, Asked(begin))
        assert (found.looked_at, found.complete) == (4, True)
        assert dict(found.counts) == {"missing_field": 1, "condition": 2, "matched": 1}
        assert [(each.run_id, each.sequence, each.why) for each in found.shown] == [
            (mine, 1, "missing_field"),
            (mine, 2, "condition"),
            (mine, 3, "matched"),
            (mine, 4, "condition"),
        ]
        of_all = compiled("llm.tool_call", all_users=True, owner=Owner(user_id=""))
        everybody = await dry_run(bus, of_all, Asked(begin))
        assert dict(everybody.counts) == {"matched": 4}
        failing = compiled("llm.tool_call", where='1 / event.data["n"] == 1')
        failed = await dry_run(bus, failing, Asked(begin))
        assert failed.counts["failed"] == 1
        assert "divide by zero" in failed.shown[0].reason
        later = await dry_run(bus, compiled("llm.tool_call"), Asked(datetime.now(UTC)))
        assert later.looked_at == 0


async def test_a_dry_run_looks_at_a_limited_number_of_events(fresh_nats: NatsServer) -> None:
    begin = datetime.now(UTC)
    async with connected(fresh_nats.url) as bus:
        await publish(bus, "u1", *["x"] * 60)
        found = await dry_run(bus, compiled("llm.tool_call"), Asked(begin, 50))
        assert (found.looked_at, found.complete) == (50, False)
        assert len(found.shown) == 20
        whole = await dry_run(bus, compiled("llm.tool_call"), Asked(begin, 60))
        assert (whole.looked_at, whole.complete) == (60, True)
