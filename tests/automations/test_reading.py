"""Automations read only the events that rules name."""

from __future__ import annotations

import pytest

from penstock.bus import streams
from support.drive.automations import Automations, DrivenRun, automations, rule
from support.drive.waiting import eventually
from support.real.nats import NatsServer


async def told(made: Automations, run: DrivenRun, outcomes: int) -> None:
    """Publish a run with many pieces of text, and wait for the outcomes of its deliveries."""
    await run.open()
    for number in range(30):
        await run.text(f"word {number} ")
    await run.tool(1)
    await run.complete()
    await made.outcomes(run.run_id, outcomes)


async def delivered(made: Automations) -> int:
    """Wait until all messages are acknowledged; return how many the server has delivered."""

    async def settled() -> int | None:
        info = await made.bus.api(f"CONSUMER.INFO.{streams.EVENTS}.automations")
        left = info["num_pending"] + info["num_ack_pending"]
        return None if left else int(info["delivered"]["consumer_seq"])

    found = await eventually(settled, what="that all events are matched")
    assert found is not None
    return found


@pytest.mark.parametrize("order", ["none", "run"])
async def test_llm_stream_is_delivered_only_if_a_rule_names_it(
    fresh_nats: NatsServer, order: str
) -> None:
    async with automations(fresh_nats.url) as made:
        url = made.receiver.url()
        await made.apply(rule("some", url, "lifecycle.completed", "llm.tool_call", order=order))
        run = await made.run()
        await told(made, run, 2)
        assert await delivered(made) == 2, "the tool call and the end, and no text"

        never = rule("text", url, "llm.stream", where="false", order=order)
        await made.apply(never)
        await told(made, await made.run(), 2)
        assert await delivered(made) == 2 + 2 + 30

        assert await made.store.delete("text")
        await made.settled()
        await told(made, await made.run(), 2)
        assert await delivered(made) == 2 + 2 + 30 + 2


async def test_a_pattern_does_not_read_the_events_that_are_many(fresh_nats: NatsServer) -> None:
    async with automations(fresh_nats.url) as made:
        await made.apply(rule("llm", made.receiver.url(), "llm.*", where="event.sequence == 1"))
        await made.apply(rule("end", made.receiver.url(), "lifecycle.completed"))
        run = await made.run()
        await told(made, run, 1)
        events = await made.penstock.events_until(run.run_id, "automation.completed")
        wanted = [
            each
            for each in events
            if each.type == "lifecycle.completed"
            or (each.type.startswith("llm.") and each.type not in ("llm.stream", "llm.tool_args"))
        ]
        assert await delivered(made) == len(wanted) < len(events) - 30
