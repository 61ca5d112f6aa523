"""A reader may read its durable and nothing else, under the permissions of consuming.md."""

from __future__ import annotations

import re

import pytest
from nats.aio.client import Client
from nats.errors import TimeoutError as NoReply
from nats.js.api import ConsumerConfig

from penstock.events import Event
from penstock.events.note import RUN_ID
from support.drive.bus import all_processed
from support.drive.contract import block
from support.drive.waiting import eventually

from .conftest import DURABLE, FUTURE, Guarded

Reader = tuple[Client, list[str]]

OTHER = "billing-invoices-paid"
FORBIDDEN = {
    "publish an event": f"llm.tool_call.{RUN_ID}",
    "publish a command": f"command.assistant.start.{RUN_ID}",
    "decide an approval": "decide.0198c5a0-8f00-7d11-a1b2-c3d4e5f60718",
    "make a consumer": "$JS.API.CONSUMER.CREATE.EVENTS.mine.llm.>",
    "make a consumer without a filter": "$JS.API.CONSUMER.CREATE.EVENTS.mine",
    "change its durable": f"$JS.API.CONSUMER.CREATE.EVENTS.{DURABLE}",
    "make a durable in the old way": "$JS.API.CONSUMER.DURABLE.CREATE.EVENTS.mine",
    "delete its durable": f"$JS.API.CONSUMER.DELETE.EVENTS.{DURABLE}",
    "look at another durable": f"$JS.API.CONSUMER.INFO.EVENTS.{OTHER}",
    "read another durable": f"$JS.API.CONSUMER.MSG.NEXT.EVENTS.{OTHER}",
    "acknowledge for another": f"$JS.ACK.EVENTS.{OTHER}.1.1.1.1.0",
    "list the consumers": "$JS.API.CONSUMER.NAMES.EVENTS",
    "look at the stream": "$JS.API.STREAM.INFO.EVENTS",
    "read single messages": "$JS.API.STREAM.MSG.GET.EVENTS",
    "read messages directly": "$JS.API.DIRECT.GET.EVENTS",
    "read the last of a subject": f"$JS.API.DIRECT.GET.EVENTS.llm.stream.{RUN_ID}",
    "empty the stream": "$JS.API.STREAM.PURGE.EVENTS",
    "read the source frames": "$JS.API.CONSUMER.CREATE.RAW.mine",
    "ask for keys under another's name": f"runkey.{OTHER}.{RUN_ID}",
    "read the stream of keys": "$JS.API.STREAM.MSG.GET.KEYS",
    "let others forget a key": f"keygone.{RUN_ID}",
    "read a bucket": "$JS.API.DIRECT.GET.KV_approvals.$KV.approvals.x",
}
# A request that the reader may send for its own durable is forbidden for other durables, also under
# the subjects of the JetStream domain.
IMPORTED = {
    f"{what}, by the domain": subject.replace("$JS.API", "$JS.penstock.API")
    for what, subject in FORBIDDEN.items()
    if subject.startswith("$JS.API")
}
UNHEARD = [
    "live.>",
    "runkey.>",
    "key.>",
    "frames.>",
    "llm.>",
    ">",
    "_INBOX.>",
    "_INBOX_billing.>",
    "$JS.EVENT.>",
]


async def test_a_reader_gets_and_acknowledges_what_its_durable_has(
    guarded: Guarded, stored: list[Event], reader: Reader
) -> None:
    client, refused = reader
    durable = await client.jetstream(domain="penstock").pull_subscribe_bind(
        durable=DURABLE, stream="EVENTS"
    )
    messages = await durable.fetch(batch=100, timeout=5)
    types = [message.headers["ce-type"] for message in messages if message.headers]
    assert types == [event.type for event in stored if is_wanted(event)]
    assert FUTURE.type in types
    for message in messages:
        await message.ack_sync()
    info = await durable.consumer_info()
    assert (info.num_ack_pending, info.num_pending) == (0, 0)
    assert refused == []


def is_wanted(event: Event) -> bool:
    return event.type in {"llm.tool_call", "llm.tool_result"} or event.event.category == "approval"


async def test_a_reader_may_ask_for_nothing_else(guarded: Guarded, reader: Reader) -> None:
    client, refused = reader
    forbidden = [*FORBIDDEN.values(), *IMPORTED.values()]
    for subject in forbidden:
        await client.publish(subject, b"{}", reply="_INBOX_reporting.answer")
    assert await refusals(client, refused, len(forbidden)) == {
        ("publish", subject.lower()) for subject in forbidden
    }
    assert (await guarded.bus.jetstream.nats.stream_info("EVENTS")).state.messages == 0


async def test_a_reader_may_not_listen_elsewhere(reader: Reader) -> None:
    client, refused = reader
    for subject in UNHEARD:
        await client.subscribe(subject)
    assert await refusals(client, refused, len(UNHEARD)) == {
        ("subscription", subject.lower()) for subject in UNHEARD
    }


async def refusals(client: Client, refused: list[str], count: int) -> set[tuple[str, str]]:
    """Wait for this many refusals; return `publish` or `subscription` with the subject of each.

    Subjects are in lower case, since nats-py lowers its error texts.
    """

    async def all_told() -> bool:
        return len(refused) >= count

    await all_processed(client)  # The server has sent all refusals.
    await eventually(all_told, what="every refusal")
    told = (re.search(r'violation for (\w+) to "(.+?)"', text.lower()) for text in refused)
    return {(match[1], match[2]) for match in told if match}


async def test_what_is_forbidden_to_the_reader_is_answered_to_the_operator(
    guarded: Guarded,
) -> None:
    """If the operator were also refused, the reader's refusals would prove nothing."""
    await guarded.bus.jetstream.nats.add_consumer("EVENTS", ConsumerConfig(durable_name=OTHER))
    for what in ("look at another durable", "look at the stream", "list the consumers"):
        answer = await guarded.bus.client.request(FORBIDDEN[what], b"", timeout=5)
        assert b'"error"' not in answer.data, what


async def test_a_refusal_looks_like_a_timeout_to_the_caller(reader: Reader) -> None:
    client, refused = reader
    with pytest.raises(NoReply):
        await client.request("$JS.API.STREAM.INFO.EVENTS", b"", timeout=0.2)
    assert refused


async def test_another_run_of_a_replay_leaves_the_first_durable_where_it_stands(
    guarded: Guarded, stored: list[Event], reader: Reader
) -> None:
    client, _ = reader
    durable = await client.jetstream(domain="penstock").pull_subscribe_bind(
        durable=DURABLE, stream="EVENTS"
    )
    for message in await durable.fetch(batch=100, timeout=5):
        await message.ack_sync()
    before = await durable.consumer_info()

    script = block("Replay", "python")
    await guarded.operate(script, REPLAY_FROM="2026-01-01T00:00:00Z")

    replay = await guarded.bus.jetstream.nats.pull_subscribe_bind(
        durable="reporting-audit-replay", stream="EVENTS"
    )
    again = await replay.fetch(batch=100, timeout=5)
    assert len(again) == sum(map(is_wanted, stored))
    after = await durable.consumer_info()
    assert (after.ack_floor, after.delivered) == (before.ack_floor, before.delivered)


async def test_a_replay_from_a_time_leaves_out_what_is_older(
    guarded: Guarded, stored: list[Event]
) -> None:
    await guarded.operate(block("Replay", "python"), REPLAY_FROM="2100-01-01T00:00:00Z")
    info = await guarded.bus.jetstream.nats.consumer_info("EVENTS", "reporting-audit-replay")
    assert info.num_pending == 0
