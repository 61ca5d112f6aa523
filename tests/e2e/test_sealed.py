"""With content keys, what people and agents say is nowhere in clear on the disk of NATS; and each
kill of a service leaves every run readable."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import nats
import pytest

from penstock.bus import Bus, streams, subjects
from penstock.bus.admin import subscribers
from penstock.bus.admin.permissions import SUBSCRIBER
from penstock.bus.admin.subscribers import Durable, Grant
from penstock.bus.messages import REFUSAL
from penstock.bus.read import direct
from penstock.bus.sealing import KEY_BYTES
from penstock.events import Event as Canonical
from penstock.subscribe import Nats, Subscriber
from support.drive.bus import connected
from support.drive.dead_letters import all_letters
from support.drive.waiting import eventually
from support.real.deployment import CONTENT_KEY, Deployment, Event, deployment
from support.real.nats import NatsServer, login
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]


def planted(what: str) -> str:
    return f"{what}-{random.randrange(10**12):012}-planted"


def files_with(secret: str, store: Path) -> set[str]:
    """Return the streams whose files have the text."""
    found = (path for path in store.rglob("*") if path.is_file())
    return {path.parent.parent.name for path in found if secret.encode() in path.read_bytes()}


async def approved(penstock: Deployment, run_id: str, note: str) -> list[Event]:
    """Approve what the run asks for, and return the run's whole stream."""
    seen = await penstock.until(run_id, "approval.requested")
    answer = await penstock.decide(seen[-1].data["approval_id"], "approve", note=note)
    assert answer.is_success, answer.text
    return [*seen, *(await penstock.all(run_id, after=seen[-1].id))]


async def test_no_stream_has_content_in_clear_and_a_replay_is_what_came_live(
    penstock: Deployment, penstocks_nats: NatsServer
) -> None:
    message, args, note = planted("message"), planted("args"), planted("note")
    echo = await penstock.run("assistant", f"hello {message}")
    confirm = await penstock.run("assistant", f"confirm {args}")
    live = {
        echo: await penstock.all(echo),
        confirm: await approved(penstock, confirm, note),
    }
    assert any(message in str(each.data) for each in live[echo] if each.type == "llm.stream")
    assert any(args in str(each.data) for each in live[confirm] if each.type == "llm.tool_call")
    assert any(args in str(each.data) for each in live[confirm] if each.type == "llm.tool_result")
    for run_id, events in live.items():
        assert await penstock.all(run_id, edge=1) == events
    for secret in (message, args, note):
        assert files_with(secret, penstocks_nats.store) == set()
    # The search finds what is there.
    assert {"RAW", "EVENTS", "KV_runs"} <= files_with(echo, penstocks_nats.store)


async def test_a_service_that_lacks_the_key_does_not_start_and_says_what_to_do(
    penstock: Deployment, penstocks_nats: NatsServer
) -> None:
    await penstock.all(await penstock.run("assistant", "text please"))
    before = list(penstock.instances)
    try:
        with pytest.raises(RuntimeError, match="PENSTOCK_CONTENT_KEYS is not set to"):
            await penstock.start("edge", environment={"PENSTOCK_CONTENT_KEYS": ""})
    finally:
        penstock.instances[:] = before


async def test_a_subscriber_reads_what_it_is_granted_until_the_run_is_erased(
    penstock: Deployment, penstocks_nats: NatsServer
) -> None:
    """Separate services, NATS with accounts, and the user of subscribers."""
    args = planted("args")
    run_id = await penstock.run("assistant", f"confirm {args}")
    events = await approved(penstock, run_id, planted("note"))
    shown = [(each.sequence, each.type) for each in events]

    async with connected(penstocks_nats.url, content_keys=(CONTENT_KEY,)) as bus:
        envelopes = await read(bus, penstocks_nats, run_id, Grant(), len(events))
        assert [(each.sequence, each.type) for each in envelopes] == shown
        assert all(each.data == {"sealed": each.data["sealed"]} for each in envelopes)
        assert args not in "".join(each.model_dump_json() for each in envelopes)

        whole = await read(bus, penstocks_nats, run_id, Grant(True), len(events))
        assert [(each.sequence, each.type, each.data) for each in whole] == [
            (each.sequence, each.type, each.data) for each in events
        ]

        request = subjects.key_request(SUBSCRIBER, run_id)
        reader = await nats.connect(penstocks_nats.url, **login(SUBSCRIBER))
        try:
            assert len((await reader.request(request, timeout=5)).data) == KEY_BYTES
            await erased(penstock, run_id)
            answer = await reader.request(request, timeout=5)
            assert (answer.data, (answer.headers or {})[REFUSAL]) == (b"", "erased")
            report = await penstock.http.get(f"{penstock.edge()}/v1/runs/{run_id}/erasure")
            details = [each.get("detail") for each in report.json()["places"]]
            assert f"{SUBSCRIBER} (grant content)" in details
        finally:
            await reader.close()
        await subscribers.delete(bus, SUBSCRIBER)
        assert await all_letters(bus, SUBSCRIBER) == []


async def read(
    bus: Bus, server: NatsServer, run_id: str, given: Grant, count: int
) -> list[Canonical]:
    """Read the events of the run with this grant, from the first one on."""
    await subscribers.delete(bus, SUBSCRIBER)
    await subscribers.make(bus, Durable(SUBSCRIBER, (f"*.*.{run_id}",)))
    await subscribers.grant(bus, SUBSCRIBER, given)
    subscriber = Subscriber(SUBSCRIBER, Nats(url=server.url, **login(SUBSCRIBER)))
    found: list[Canonical] = []

    @subscriber.on(f"*.*.{run_id}")
    async def take(event: Canonical) -> None:
        found.append(event)

    async def enough() -> bool:
        return len(found) >= count

    await subscriber.broker.start()
    try:
        await eventually(enough, 30, f"{count} events")
    finally:
        await subscriber.broker.stop()
    return found


async def erased(penstock: Deployment, run_id: str) -> None:
    """Erase the run's content; return when nobody gets it any more."""

    async def is_withheld() -> bool:
        # The record says some milliseconds after the last event that the run has ended.
        answer = await penstock.http.delete(f"{penstock.edge()}/v1/runs/{run_id}/content")
        return answer.is_success

    await eventually(is_withheld, 30, "the erasure")


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_every_run_ends_readable_while_each_service_is_killed_in_turn(
    fresh_nats: NatsServer, tmp_path: Path, agno_server: Upstream
) -> None:
    agent = {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    count = {"normalizer": 2, "connector": 2, "edge": 2, "approvals": 2}
    async with deployment(
        fresh_nats.url, tmp_path, [agent], count, content_keys=CONTENT_KEY
    ) as penstock:
        secrets: list[str] = []
        for service in (*count, *count):
            secrets.append(planted(service))
            runs = [await penstock.run("assistant", f"slowtool {secrets[-1]}") for _ in range(3)]
            await asyncio.gather(*(penstock.until(each, "llm.tool_call") for each in runs))
            await penstock.kill(penstock.of(service)[0])
            await penstock.start(service)
            for run_id in runs:
                events = await eventually(partial(whole, penstock, run_id), 90, run_id)
                assert [each.sequence for each in events] == [*range(1, len(events) + 1)]
                assert all("sealed" not in each.data for each in events)
        for secret in secrets:
            assert files_with(secret, fresh_nats.store) == set()


async def whole(penstock: Deployment, run_id: str) -> list[Event] | None:
    if await penstock.status(run_id) not in ("completed", "failed"):
        return None
    return await penstock.all(run_id)


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_an_installation_is_switched_over_while_a_run_goes_on(
    fresh_nats: NatsServer, tmp_path: Path, agno_server: Upstream
) -> None:
    agent = {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    services = ("normalizer", "approvals", "connector", "edge")
    async with deployment(fresh_nats.url, tmp_path, [agent], 1) as penstock:
        args = planted("args")
        run_id = await penstock.run("assistant", f"confirm {args}")
        seen = await penstock.until(run_id, "approval.requested")

        async def restarted(keys: str) -> None:
            for service in services:
                [old] = penstock.of(service)
                port = old.port
                old.process.popen.terminate()
                await asyncio.to_thread(old.process.popen.wait)
                penstock.instances.remove(old)
                await penstock.start(service, port, environment={"PENSTOCK_CONTENT_KEYS": keys})

        # First all can open, then all seal, then all refuse what is in clear.
        for keys in (f"none,{CONTENT_KEY}", f"{CONTENT_KEY},none", CONTENT_KEY):
            await restarted(keys)
        note = planted("note")
        answer = await penstock.decide(seen[-1].data["approval_id"], "approve", note=note)
        assert answer.is_success, answer.text
        events = await penstock.all(run_id)
        assert events[: len(seen)] == seen
        assert [each.sequence for each in events] == [*range(1, len(events) + 1)]
        async with connected(fresh_nats.url, content_keys=(CONTENT_KEY,)) as bus:
            found, _ = await direct.read(
                bus, streams.events_for(run_id), subjects.events_of_run(run_id)
            )
            assert len(found) == len(events)
        assert files_with(note, fresh_nats.store) == set()
        assert "EVENTS" in files_with(args, fresh_nats.store)  # of before the switch
