"""The starts of one session begin in the order of their commands, at whichever connector."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.bus import Bus, Stored
from penstock.bus.records.legs import Claim
from penstock.bus.streams import COMMANDS
from penstock.bus.subjects import command
from penstock.bus.write import objects
from penstock_connector import service
from penstock_connector.commands import session_order
from penstock_connector.commands.session_order import SessionOrder
from penstock_connector.legs.orders import Order, Orders
from penstock_connector.service import ConnectorService
from penstock_connector.state.stores import open_stores
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, Services, pipeline
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, agents
from support.fakes.raw import agno_text
from support.real.nats import NatsServer

NORMALIZER: Services = (NormalizerService,)
CONNECTOR: Services = (ConnectorService,)


# The order of starts


def order_of(bus: Bus) -> SessionOrder:
    pod = "connector-test-1-abcdef"
    stores = open_stores(bus, pod)
    return SessionOrder(bus, stores.runs, stores.claims)


async def asked(penstock: Pipeline, session_id: str, message: str = "hello") -> Stored:
    """Return the command of a new run, as the stream has it."""
    start = await penstock.register("agno", message, session_id=session_id)
    payload = await objects.wrap(penstock.bus, f"{start.run_id}.start", start.dump(), start.run_id)
    await penstock.publish("start", start.run_id, payload)
    stored = await penstock.bus.tail(COMMANDS, command("connector", "start", start.run_id))
    assert stored is not None
    return stored


def run_of(stored: Stored) -> str:
    return stored.subject.rpartition(".")[2]


async def test_a_start_waits_for_the_first_earlier_one_of_its_session_and_for_no_other(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    async with pipeline(fresh_nats.url, agents(upstream), NORMALIZER) as penstock:
        order = order_of(penstock.bus)
        first = await asked(penstock, "one")
        another = await asked(penstock, "another")
        # So large that it is stored by reference.
        second = await asked(penstock, "one", "x" * 800_000)
        third = await asked(penstock, "one")
        assert await order.before(another) is None
        assert await order.before(first) is None
        for later in (second, third):
            earlier = await order.before(later)
            assert earlier is not None
            assert earlier.stored.sequence == first.sequence
        assert await penstock.bus.delete(COMMANDS, first.sequence)  # as an acknowledgement does it
        assert await order.before(second) is None
        earlier = await order.before(third)
        assert earlier is not None
        assert earlier.stored.sequence == second.sequence


async def test_a_start_that_has_begun_or_is_cancelled_blocks_nobody_though_its_command_is_stored(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    async with pipeline(fresh_nats.url, agents(upstream), NORMALIZER) as penstock:
        order = order_of(penstock.bus)
        first, second, third = [await asked(penstock, "one") for _ in range(3)]
        await open_stores(penstock.bus, "p").runs.writer(run_of(first)).write("open", b"{}", leg=1)
        assert await order.before(second) is None
        assert await order.before(third) is not None
        claim = Claim(pod="p", state="cancelled")
        await penstock.bus.bucket("claims").create(f"claim.{run_of(second)}", claim.dump())
        assert await order.before(third) is None


async def test_a_command_that_cannot_be_read_blocks_nobody(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    async with pipeline(fresh_nats.url, agents(upstream), NORMALIZER) as penstock:
        for payload in (b"no JSON", b"[]", b"{}", b'{"penstock_object":"gone"}'):
            await penstock.bus.jetstream.nats.publish(command("connector", "start", "r"), payload)
        order = order_of(penstock.bus)
        assert await order.before(await asked(penstock, "one")) is None


async def test_a_stream_that_begins_anew_is_read_anew(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an older store was put back, another command may have a known sequence."""
    async with pipeline(fresh_nats.url, agents(upstream), NORMALIZER) as penstock:
        order = order_of(penstock.bus)
        first, second = [await asked(penstock, "one") for _ in range(2)]
        assert await order.before(second) is not None
        another = Stored(command("connector", "start", "another"), second.sequence, {}, b"{}")
        assert await order.before(another) is not None  # the stream's command decides
        assert await order.before(second) is not None
        monkeypatch.setattr(session_order, "REBUILD_FROM", 0)
        order = order_of(penstock.bus)
        assert await order.before(first) is None
        third = await asked(penstock, "one")  # the full cache is read again
        assert await order.before(third) is not None


# With connectors


class Held:
    """An agent server that answers the message `hold` only after a signal, and others at once."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def __call__(self, answer: Answer) -> None:
        if answer.request.form["message"] == "hold":
            await self.let_go.wait()
        await answer.whole(agno_text("x"))


async def test_a_start_never_begins_before_an_earlier_one_that_waits_at_a_full_connector(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SHARE_S", 600.0)  # no look for starts elsewhere
    held = Held()
    upstream.script(held)
    url, config = fresh_nats.url, agents(upstream)
    full = {"max_legs": 1, "max_waiting_starts": 1, "ack_wait_s": 600}
    async with (
        pipeline(url, config, NORMALIZER) as penstock,
        pipeline(url, config, CONNECTOR, **full),
    ):
        first = await penstock.start_run("agno", "hold")
        await upstream.called()
        earlier = await penstock.start_run("agno", "earlier", session_id="one")
        await delivered(penstock.bus, 2)
        async with pipeline(url, config, CONNECTOR, ack_wait_s=600):
            later = await penstock.start_run("agno", "later", session_id="one")
            unrelated = await penstock.start_run("agno", "unrelated")
            for run_id in (unrelated, later, earlier, first):
                *_, last = await penstock.ended(run_id)
                assert last.type == "lifecycle.completed"
                if run_id == later:
                    held.let_go.set()
    said = [call.form["message"] for call in upstream.calls]
    assert said == ["hold", "unrelated", "earlier", "later"]


async def test_a_start_begins_when_the_earlier_one_at_a_full_connector_is_cancelled(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SHARE_S", 600.0)
    monkeypatch.setattr("penstock_connector.commands.start.TAKE_UP_S", 600.0)
    held = Held()
    upstream.script(held)
    url, config = fresh_nats.url, agents(upstream)
    full = {"max_legs": 1, "max_waiting_starts": 1, "ack_wait_s": 600}
    async with (
        pipeline(url, config, NORMALIZER) as penstock,
        pipeline(url, config, CONNECTOR, **full),
    ):
        first = await penstock.start_run("agno", "hold")
        await upstream.called()
        earlier = await penstock.start_run("agno", "earlier", session_id="one")
        await delivered(penstock.bus, 2)
        async with pipeline(url, config, CONNECTOR, ack_wait_s=600):
            later = await penstock.start_run("agno", "later", session_id="one")
            await delivered(penstock.bus, 3)
            await penstock.cancel(earlier)
            for run_id, how in ((earlier, "cancelled"), (later, "completed")):
                *_, last = await penstock.ended(run_id)
                assert last.type == f"lifecycle.{how}"
            held.let_go.set()
            await penstock.ended(first)
    assert [call.form["message"] for call in upstream.calls] == ["hold", "later"]


async def test_many_starts_of_one_session_sent_at_once_run_in_order_at_two_connectors(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Orders.of_start

    async def reads(self: Orders, stored: Stored) -> Order:
        await asyncio.sleep(random.random() / 20)  # as if the request were large
        return await read(self, stored)

    monkeypatch.setattr(Orders, "of_start", reads)
    upstream.script(Held())
    url, config, count = fresh_nats.url, agents(upstream), 30
    async with (
        pipeline(url, config, NORMALIZER) as penstock,
        pipeline(url, config, CONNECTOR, max_legs=3),
        pipeline(url, config, CONNECTOR, max_legs=3),
    ):
        runs = [
            await penstock.start_run("agno", str(number), session_id="one")
            for number in range(count)
        ]
        for run_id in runs:
            *_, last = await penstock.ended(run_id, timeout_s=40)
            assert last.type == "lifecycle.completed"
    assert [call.form["message"] for call in upstream.calls] == [*map(str, range(count))]


async def delivered(bus: Bus, count: int) -> None:
    """Wait until connectors have received `count` starts."""

    async def probe() -> bool:
        info = await bus.api("CONSUMER.INFO.COMMANDS.connector-start")
        return int(info["delivered"]["consumer_seq"]) >= count

    await eventually(probe, 30, f"{count} starts are delivered")
